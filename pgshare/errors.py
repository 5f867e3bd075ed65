"""Every error that pgshare raises on purpose: one class per thing the reader can do next."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class PgshareError(Exception):
    """Base of every error raised on purpose; the message says the way out."""


class SettingError(PgshareError, ValueError):
    """A setting has an unusable value; the message names the setting and its source."""


class OriginUnavailableError(PgshareError):
    """No allowed origin works here; ``tried`` lists each origin with its reason."""

    def __init__(self, message: str, *, tried: Sequence[str] = ()) -> None:
        self.tried = tuple(tried)
        super().__init__(message)


class ServerStartError(PgshareError):
    """``initdb`` or ``postgres`` ended instead of becoming ready."""

    def __init__(self, message: str, *, returncode: int | None = None, log_tail: str = "") -> None:
        self.returncode, self.log_tail = returncode, log_tail
        super().__init__(f"{message}\n{log_tail}".rstrip())


class NotReadyError(PgshareError, TimeoutError):
    """A bounded wait ended without its fact; says what was seen last. ``waited`` is in seconds."""

    def __init__(self, what: str, *, waited: float, last_seen: str, attempts: int = 1) -> None:
        self.what, self.waited, self.last_seen, self.attempts = what, waited, last_seen, attempts
        tries = "1 try" if attempts == 1 else f"{attempts} tries"
        super().__init__(f"{what} not ready after {waited:.1f}s ({tries}); last seen: {last_seen}")


class TemplateError(PgshareError):
    """The project's own migration failed; the cause is chained."""

    def __init__(self, message: str, *, template: str = "") -> None:
        self.template = template
        super().__init__(message)


class LeftoverError(PgshareError):
    """Something we made could not be removed; it stays recorded. ``holders`` says who holds it."""

    def __init__(self, message: str, *, holders: Sequence[str] = ()) -> None:
        self.holders = tuple(holders)
        super().__init__("\n  ".join([message, *self.holders]))


class RefusedError(PgshareError):
    """Acting would not be safe: identity differs, owner alive, or a folder is not ours."""


class InventoryError(PgshareError):
    """A record cannot be read; it is moved aside and nothing is guessed."""


class KeeperError(PgshareError):
    """The suite's owner process is gone or refused; the message names its log."""
