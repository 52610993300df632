"""Fixed vectors of secure sums, for programs in other languages. `python -m covey.extras.secure.tests.vectors` prints them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.extras.secure import coordinator as co
from covey.extras.secure import derivation, primitives
from covey.extras.secure import derivation as de
from covey.extras.secure.agent_state import OwnSum
from covey.extras.secure.integers import integers_of
from covey.extras.secure.tests.group import Site, site

FILE = Path(__file__).parent / "vectors.json"
KEY = bytes(range(32))
OTHER = bytes(range(32, 64))


def small() -> dict[str, str]:
    """One line for each primitive: also in extras/secure/protocol.md."""
    shares = derivation.split(
        KEY, 4, range(1, 6), lambda n: bytes(range(1, n + 1))
    )  # the same bytes for each coefficient
    return {
        "H(test)": primitives.hashed("test").hex(),
        "H(test, 01, 0203)": primitives.hashed("test", b"\x01", b"\x02\x03").hex(),
        "KDF(key, salt = other, test, 01)": primitives.derived(KEY, OTHER, "test", b"\x01").hex(),
        "X25519 key of key": primitives.public_key(KEY).hex(),
        "Ed25519 key of key": primitives.signing_key(KEY).hex(),
        "PRG(key), 4 integers": " ".join(map(str, integers_of(KEY, 4))),
        "cell of 33 zeros under key, about 01": primitives.sealed(KEY, bytes(33), b"\x01").hex(),
        "share 5 of key, threshold 4": derivation.share_to_bytes(shares[5]).hex(),
    }


def whole_sum() -> dict[str, Any]:
    """A sum of 5 members, of whom the last vanishes after it joined."""
    here = site(5)
    here.gather_joins()
    secrets = [_secrets(here, place) for place in range(1, 6)]
    here.gather_reports([1, 2, 3, 4])
    vectors = {
        str(place): here.members[place - 1].vectors[here.begun.digest].tolist()
        for place in here.state.reported
    }
    here.gather_answers()
    assert isinstance(here.end, co.Opened)
    contents = {
        record.name: record.content.hex() for record in here.records if record.name != "end"
    }
    return {
        "T": here.machine.name.hex(),
        "D": de.name_of_list(here.state.listing).hex(),
        "U": de.name_of_unmask(here.state.unmask).hex(),
        "members": secrets,
        "contents": contents,
        "vectors": vectors,
        "masked": {str(place): here.vectors[place].tolist() for place in here.end.reported},
        "sum": here.opened().tolist(),
    }


def _secrets(here: Site, place: int) -> dict[str, str]:
    """What a member kept secret when it joined."""
    own = here.members[place - 1].state.sum
    assert isinstance(own, OwnSum)
    return {
        "signing secret": here.members[place - 1].machine.identity.secret.hex(),
        "box secret": own.box_secret.hex(),
        "seed": own.seed.hex(),
        "mask secret": own.mask_secret.hex(),
    }


def made() -> dict[str, Any]:
    return {"small": small(), "sum of 5": whole_sum()}


if __name__ == "__main__":
    print(json.dumps(made(), indent=1))
