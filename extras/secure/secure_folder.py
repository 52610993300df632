"""What a device keeps for secure sums, over all runs: its state, and the vectors of the sum that it takes part in.

`state` is replaced atomically and has the last word; a file of a vector counts only if the state has its digest. A name that
the state does not mention is left from an earlier sum.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.extras.secure.agent import SecureAgent
from covey.extras.secure.agent_state import AgentState, SecureIdentity
from covey.extras.secure.integers import WIRE, Integers, from_wire
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.primitives import KEY_BYTES, Token, hashed
from covey.shared.errors import DecodeError, PublicError
from covey.shared.storage.files import private_folder, write_private

STATE = "state"
SIGNING_KEY, ENTRY, FLEET = "signing.key", "entry", "fleet.pub"  # of a device: `agent lab keys`
EXPELLED = "expelled"
ENDING = ".words"
Arrays = Mapping[str, npt.NDArray[Any]]


class SecureFolder:
    """A folder of secure sums.

    Args:
        folder: made when something is saved.
        identity: of the agent.
        policy: of its owner.
        simulated: noise follows from the identity and hides nothing, so that a run can be repeated.
        ahead: the method's work is done ahead of its list, and stays here.
    """

    def __init__(
        self,
        folder: Path,
        identity: SecureIdentity,
        policy: OwnersPolicy | None = None,
        *,
        simulated: bool = False,
        ahead: bool = False,
    ) -> None:
        self.ahead = ahead
        self._folder = folder
        self._is_simulated = simulated
        self.agent = SecureAgent(identity, policy or OwnersPolicy())

    @classmethod
    def of_device(
        cls, folder: Path, policy: OwnersPolicy, *, ahead: bool = False
    ) -> SecureFolder | None:
        """The folder of a device that has keys and an entry of its fleet; None if it has not."""
        try:
            secret, entry, fleet = (
                (folder / name).read_bytes() for name in (SIGNING_KEY, ENTRY, FLEET)
            )
        except FileNotFoundError:
            return None
        device = cls(folder, SecureIdentity(entry, secret, fleet), policy, ahead=ahead)
        if (folder / EXPELLED).exists():
            step = device.agent.new_expelled(device.state(), (folder / EXPELLED).read_bytes())
            if step.syncs:
                device.save(step.state)
        return device

    @staticmethod
    def signing_key(folder: Path) -> bytes:
        """The public signing key of this device, which is made now if there is none."""
        from covey.extras.secure import fleet_key, primitives

        path = folder / SIGNING_KEY
        if not path.exists():
            private_folder(folder.parent)
            private_folder(folder, durable=True)
            write_private(path, fleet_key.new_secret())
        return primitives.signing_key(path.read_bytes())

    @staticmethod
    def take_entry(folder: Path, entry: bytes, fleet: bytes, expelled: bytes = b"") -> None:
        """Keep the entry of this device's credentials, the key of its fleet, and the list of expelled entries."""
        private_folder(folder.parent)
        private_folder(folder, durable=True)
        if expelled:
            write_private(folder / EXPELLED, expelled)
        write_private(folder / FLEET, fleet)
        write_private(folder / ENTRY, entry)

    @staticmethod
    def is_of(folder: Path, entry: bytes) -> bool:
        """Whether an entry is for the signing key that lies in this folder."""
        from covey.extras.secure import fleet_key, primitives

        try:
            own = primitives.signing_key((folder / SIGNING_KEY).read_bytes())
        except FileNotFoundError:
            return False
        return own == fleet_key.key_of_entry(entry)

    @property
    def token(self) -> Token:
        return os.urandom

    def noise_key(self, start: bytes) -> bytes:
        """The key of the noise on the vector of a start, which is drawn once."""
        if self._is_simulated:
            return hashed("simulated noise", self.agent.identity.secret, start)
        return self.token(KEY_BYTES)

    @property
    def now(self) -> float:
        return time.time()

    def state(self) -> AgentState:
        """The state on disk, or an empty one. Raises PublicError for a damaged file."""
        path = self._folder / STATE
        try:
            return AgentState.from_bytes(path.read_bytes())
        except FileNotFoundError:
            return AgentState()
        except DecodeError:
            raise PublicError(
                "secure sums: the state of this device is damaged, so it is unknown which starts it has answered; "
                "expel the device, and enroll it again with an empty state folder (--state)"
            ) from None

    def save(self, state: AgentState) -> None:
        private_folder(self._folder, durable=True)
        write_private(self._folder / STATE, state.to_bytes())

    def vector(self, name: str) -> Integers | None:
        try:
            return from_wire(self._file(name).read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def save_vector(self, name: str, vector: Integers) -> None:
        private_folder(self._folder, durable=True)
        write_private(self._file(name), np.asarray(vector, WIRE).tobytes())

    def erase_work(self) -> None:
        for path in [*self._folder.glob(f"*{ENDING}"), self._folder / "work.npz"]:
            path.unlink(missing_ok=True)

    def keep_work(self, name: bytes, arrays: Arrays, kind: str = "work") -> None:
        private_folder(self._folder, durable=True)
        content = io.BytesIO()
        np.savez(content, **{**arrays, "name": np.frombuffer(name, np.uint8)})  # type: ignore[arg-type]
        write_private(self._folder / f"{kind}.npz", content.getvalue())

    def kept_work(self, name: bytes, kind: str = "work") -> Arrays | None:
        try:
            with np.load(self._folder / f"{kind}.npz", allow_pickle=False) as file:
                arrays = dict(file)
        except MemoryError:
            raise
        except (
            Exception
        ):  # numpy and zipfile raise a dozen types for a damaged file: the work is done now
            return None
        return arrays if arrays.pop("name").tobytes() == name else None

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}{ENDING}"
