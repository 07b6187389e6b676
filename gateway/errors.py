"""The error tree, and when to try again. An error's name tells its catcher how to react.

ParlourError
├── UserError                a person can fix it: the text names the problem and the remedy (exit code 2)
│   ├── NothingToReplay      a stored turn cannot run again: what it needs never was, or was removed (exit code 4)
│   ├── SettingsError        a setting is wrong
│   │   └── LoginRefused     a platform does not accept the token
│   ├── HomeInUse            another gateway owns the home directory
│   ├── SchemaTooNew         the home was written by a newer Parlour
│   └── SchemaTooOld         the home was written before 0.2.0
├── FileUnavailable          a file cannot be fetched; the text is a phrase for users
├── UnreadableEvent          a platform's event cannot be parsed, nor will it be when it is delivered again
├── StoreUnavailable         the journal cannot write now; nothing was confirmed, retry when it is back
│   ├── ObjectsUnavailable   the object store of large files cannot be used now; go on with what does not need it
│   │   └── ObjectDamaged     an object is missing or was changed; use what does not need it
│   └── WorkerReplaced       other gateways have taken over from this one, which must end
├── LeaseLost                another worker owns the session; discard the turn
├── CapReached               a cap does not allow the model call; notify and end the turn (gateway/ports/access.py)
├── SendFailed
│   ├── RetryLater           not sent; send the same part after *delay*
│   ├── SendRefused          not sent and never will be; dead-letter it
│   │   └── PlaceGone         the thread or chat takes no message from us; try its parent chat
│   ├── FormatRefused        the platform cannot parse the formatting; send the same part as plain text, once
│   └── OutcomeUnknown       perhaps sent; look it up by the part's key, else mark the resend
├── ModelFailed
│   ├── ModelRateLimited     429 or overloaded; retry after *delay*, or use another model
│   ├── ModelUnreachable     no connection; retry, or use another model
│   │   └── ModelServerFailed  5xx, or the connection broke in the middle
│   ├── ModelTimeout         no answer, or silence in a stream
│   ├── ModelRefused         400, 401, 404: this request never succeeds at this model
│   │   └── AbilityMissing   the model or its server lacks what the request used; ask without it
│   ├── InvalidModelReply    the reply cannot be parsed (cut JSON, too large)
│   │   └── EmptyModelReply  the reply has no text and no tool call
│   └── ContextOverflow      the prompt does not fit
└── ToolFailed               a tool's own error, shown to the model
    └── NothingHappened      a tool with side effects refused before any; the same call may be made again
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TypeVar


class ParlourError(Exception):
    """Anything we raise on purpose; every other exception is a bug."""


class UserError(ParlourError):
    """A person can fix this. The text is one line that names the problem and the remedy."""

    exit_code = 2  # of a command that ends with it


class NothingToReplay(UserError):
    """A stored turn asked no model, or what it needs to run again was erased or removed by age."""

    exit_code = 4


class SettingsError(UserError):
    """A setting is wrong. The text names it and the remedy."""


class LoginRefused(SettingsError):
    """A platform does not take our token, and will not until it has another one."""


class HomeInUse(UserError):
    """Another gateway owns the home folder."""


class SchemaTooNew(UserError):
    """The home folder was written by a newer Parlour; the text holds the command that restores the snapshot."""


class SchemaTooOld(UserError):
    """The home or its store was written by a release from which this one cannot upgrade."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}, which is older than 0.2.0: start the home once with the version of commit b09faca5, which"
            " upgrades it, then with this one"
        )


class FileUnavailable(ParlourError):
    """A file cannot be had. The text is a short phrase for a person: larger than 20 MB, gone from the platform."""


class UnreadableEvent(ParlourError):
    """A platform's event has another shape than we know; the text names no word of it."""


class StoreUnavailable(ParlourError):
    """The journal cannot write now. Nothing was confirmed; the same call is safe once it is back."""


class ObjectsUnavailable(StoreUnavailable):
    """The object store beside the database cannot be used now. The text is for an operator."""


class ObjectDamaged(ObjectsUnavailable):
    """An object in the object store is missing, or not what was stored. The text names it and the remedy."""


class WorkerReplaced(StoreUnavailable):
    """Other gateways have taken over: this one must end. It stored nothing since, and never will again."""


class LeaseLost(ParlourError):
    """Another owner holds the session's lease; work done under the lost one does not count."""


class ScopeMoved(ParlourError):
    """Accounts of the turn's person were linked or unlinked since its claim; the turn is claimed again."""


class SendFailed(ParlourError):
    """A part did not reach its platform for certain."""


class RetryLater(SendFailed):
    """The platform asked us to wait; send the same part again after *delay*. Nothing was sent."""

    def __init__(self, delay: timedelta, reason: str = "") -> None:
        super().__init__(reason or f"retry in {delay.total_seconds():.0f}s")
        self.delay = delay


class SendRefused(SendFailed):
    """The platform will never take this part (blocked, chat gone, 400)."""


class PlaceGone(SendRefused):
    """The thread or chat takes no message of the bot: deleted, closed, locked, or without the right to write."""


class FormatRefused(SendFailed):
    """The platform cannot read the formatting; send the plain text of the same part, once."""


class OutcomeUnknown(SendFailed):
    """The connection broke after the request left: perhaps sent, perhaps not."""


class FailureCause(StrEnum):
    """Reasons for a failure that a person can repair. The names are stable: catalogue, alerts and links use them."""

    KEY = "key"  # rejected or missing
    RIGHTS = "rights"  # the key may not use this model
    ACCOUNT = "account"  # no money or no quota is left
    MODEL = "model"  # there is none of this name, or no longer
    ADDRESS = "address"  # the server has nothing at this path
    FILTERED = "filtered"  # the content is refused
    CERTIFICATE_EXPIRED = "certificate_expired"
    CERTIFICATE_NAME = "certificate_name"  # it is for another host
    CERTIFICATE_SELF_SIGNED = "certificate_self_signed"
    CERTIFICATE_ISSUER = "certificate_issuer"  # nobody trusts who has signed it
    TLS = "tls"  # the server speaks none, or another version
    HOST = "host"  # there is none of this name
    CONNECTION = "connection"  # nothing listens there
    PROXY = "proxy"  # our proxy cannot be reached, or refuses
    PROXY_UNUSED = "proxy_unused"  # the machine names a proxy that we are not told of

    @property
    def is_permanent(self) -> bool:
        """True if every request fails until a person has repaired it; owners are notified at once."""
        return self in _PERMANENT

    @property
    def is_about_model(self) -> bool:
        """True if connecting another model, or this one by another key or address, ends it."""
        return self not in (FailureCause.FILTERED, FailureCause.PROXY, FailureCause.PROXY_UNUSED)


_PERMANENT = frozenset(
    {FailureCause.KEY, FailureCause.RIGHTS, FailureCause.ACCOUNT, FailureCause.MODEL, FailureCause.ADDRESS}
    | {each for each in FailureCause if each.startswith(("certificate", "tls"))}
)


class ModelFailed(ParlourError):
    """A model gave no usable answer. Its text is the operator's, never a person's."""

    spent: object = None  # tokens of the failed call; read by agent.llm.chat_model.usage_of_error
    is_unexplained = False  # a refusal of the request in words that nobody knows; a smaller prompt may succeed

    def __init__(self, message: str = "", cause: FailureCause | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class ModelRateLimited(ModelFailed):
    """Rate-limited or overloaded; *delay* is what the provider asked for, if it did."""

    def __init__(self, message: str, delay: timedelta | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class ModelUnreachable(ModelFailed):
    """The connection failed."""


class ModelServerFailed(ModelUnreachable):
    """The server was reached, and answered 5xx or broke off."""


class ModelTimeout(ModelFailed):
    """No answer within the time limit, or silence in a stream."""


class ModelRefused(ModelFailed):
    """The provider refuses this request for good (bad key, unknown model, bad request)."""

    @property
    def is_about_account(self) -> bool:
        """True if key, quota, model or address is wrong, so that any request would be refused."""
        return self.cause is not None and self.cause.is_permanent


class ModelAbility(StrEnum):
    """What a request uses that not every model or server has. The values are stored."""

    STREAM_OPTIONS = "stream_options"
    STREAM = "stream"
    SYSTEM = "system"  # a message with the role `system`
    PICTURES = "pictures"
    TOOLS = "tools"
    TOOL_CHOICE = "tool_choice"  # that a call is forced
    EFFORT = "effort"  # the field for how long a model thinks
    REASONING = "reasoning"  # a model's earlier reasoning in the history
    FOREIGN_CALLS = "foreign_calls"  # calls in the history without what this model adds to its own


class AbilityMissing(ModelRefused):
    """The provider refuses a field or an ability; the same request without it may succeed."""

    def __init__(self, message: str, ability: ModelAbility, *, is_lasting: bool = True) -> None:
        """*is_lasting* is False if the model has the ability, and only this request uses too much of it."""
        super().__init__(message)
        self.ability = ability
        self.is_lasting = is_lasting


class InvalidModelReply(ModelFailed):
    """An answer came that cannot be used: cut JSON, no content at all, too large."""


class EmptyModelReply(InvalidModelReply):
    """An answer came with no words and no tool call in it."""


class ContextOverflow(ModelFailed):
    """The prompt is longer than the model takes; *window* is the limit in tokens that it named, or 0."""

    def __init__(self, message: str, window: int = 0) -> None:
        super().__init__(message)
        self.window = window


class ToolFailed(ParlourError):
    """A tool's own failure; the text goes back to the model."""


class NothingHappened(ToolFailed):
    """A tool refused before it changed anything, so the same call may be made again."""


# Retry libraries (tenacity, stamina) run a loop inside one process. Most attempts here are rows and continue after a
# restart, and a platform's `Retry-After` decides first, so only the formula is shared.
_Delay = TypeVar("_Delay", float, timedelta)
_MOST_DOUBLINGS = 20


def exponential_delay(failures: int, first: _Delay, longest: _Delay) -> _Delay:
    """Return the delay after *failures* in a row: *first*, doubled by each further one, at most *longest*."""
    return min(first * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), longest)
