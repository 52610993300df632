"""The code of a user's own that may run on this machine: what the owner typed on the command line, and nothing else.

Orders, statuses, scenarios and model files come from others. They may name any built-in model; anything else that they
name is checked here before it is imported. An idle agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

from covey.shared.errors import PublicError, UserError

BUILT_IN_MODELS = (
    "lenet5",
    "mlp",
    "linear",
    "cnn1d",
    "gru",
    "autoencoder",
    "cnn4",
    "mobilenet",
    "resnet9",
    "femnist_cnn",
    "celeba_cnn",
    "vgg16",
)
# Objects of other frameworks: "flower:MODULE:client_fn" and "sklearn:MODULE:make_estimator" name MODULE's code.
FRAMEWORKS = ("flower", "sklearn")
ALLOWABLE = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*(:[A-Za-z_]\w*)?", re.ASCII)


def framework_of(name: str) -> str | None:
    """The framework that the name of a model or learner begins with; None for all other names."""
    framework, _, code = name.partition(":")
    return framework if framework in FRAMEWORKS and ":" in code else None


def code_of(name: str) -> str:
    """The "module:callable" or entry point that the name of a model means."""
    return name.partition(":")[2] if framework_of(name) else name


class ConsentError(PublicError):
    """Code was named that the owner of this machine has not allowed. It was not imported.

    Example:
        >>> scenario = covey.load("scenarios/smoke.yaml", "task.model.name=mine:net")
        >>> try:
        ...     covey.run(scenario)
        ... except covey.ConsentError as error:
        ...     print(error)
        the scenario smoke names code of its own: mine:net; allow it with allow=["mine"]
    """


@dataclass(frozen=True)
class AllowedCode:
    """Modules ("my_pkg.models"), single functions ("my_pkg.models:net") and installed entry points that may be loaded.

    The name of a module allows only that module, neither the modules below it nor its package.
    """

    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, words: Iterable[str] | None) -> Self:
        """The words of `--allow`. Raises UserError for a word that names no module."""
        names = frozenset(words or ())
        for name in sorted(names):
            if not ALLOWABLE.fullmatch(name):
                raise UserError(
                    f"--allow {name!r}: expected the exact name of a module such as my_pkg.models, one function of it "
                    "such as my_pkg.models:net, or an installed entry point"
                )
        return cls(names)

    @classmethod
    def for_data(cls, source: str) -> Self:
        """The consent of an owner who types `--data SOURCE` herself: to the code that this names, and to nothing else.

        A source is `module:function[:PATH]`, or the name of an installed entry point of the group `covey.data`.
        """
        module, colon, rest = source.partition(":")
        function = rest.partition(":")[0]
        return cls(frozenset([f"{module}:{function}" if colon else f"covey.data:{source}"]))

    def allows(self, reference: str) -> bool:
        """Whether this "module:callable", or the entry point of this name, may be loaded."""
        reference = code_of(reference)
        module, _, _ = reference.partition(":")
        return reference in self.names or module in self.names

    def check(self, reference: str) -> None:
        """Raises ConsentError where the reference is not allowed. Call it before any import."""
        if not self.allows(reference):
            module, _, _ = code_of(reference).partition(":")
            raise ConsentError(
                f"code of its own is named: {reference}; the owner of this machine must allow it with --allow {module}"
            )

    def check_model(
        self, name: str, whose: str = "this task", owner: str = "the owner of this device"
    ) -> None:
        """Raises ConsentError for the name of a model that is neither built in nor allowed.

        `whose` and `owner` are for the message: who names the model, and who may allow it.
        """
        if name in BUILT_IN_MODELS or self.allows(name):
            return
        module, colon, _ = code_of(name).partition(":")
        if not colon:
            known = ", ".join(BUILT_IN_MODELS)
            similar = difflib.get_close_matches(name, BUILT_IN_MODELS, 1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            raise ConsentError(
                f"task.model {name!r} is unknown; expected {known}, or a model of your own with --allow{hint}"
            )
        raise ConsentError(
            f"{whose} names code of its own: {name}; {owner} must allow it with --allow {module}"
        )

    def options(self) -> list[str]:
        """The same consent as options for a program that this one starts."""
        return [word for name in sorted(self.names) for word in ("--allow", name)]


NO_CODE = AllowedCode()
_in_effect: ContextVar[AllowedCode] = ContextVar("allowed", default=NO_CODE)


def consent() -> AllowedCode:
    """What the owner of this machine has allowed for as long as the present command or job lasts."""
    return _in_effect.get()


@contextmanager
def consented(allowed: AllowedCode) -> Iterator[None]:
    """Let the owner's words be in effect inside the block, on top of those that are."""
    before = _in_effect.set(AllowedCode(consent().names | allowed.names))
    try:
        yield
    finally:
        # a command that is refused while its options are read leaves the block to the garbage collector, which may run in
        # another context: there is nothing to undo
        with suppress(ValueError):
            _in_effect.reset(before)
