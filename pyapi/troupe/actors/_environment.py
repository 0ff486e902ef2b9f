"""``runtime_env``: what a process is to find around it. This side checks and packs it.

Folders travel as one package each, under the digest of its content, by the ref of a value that was
put: a host fetches it once (``_environment_setup``). What a process needs to begin with stands in
one of its environment variables, since it comes before anything can be unpickled.
"""

from __future__ import annotations

import base64
import dataclasses
import fnmatch
import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Optional

from troupe._config import check_amount
from troupe.actors import _refs, _session
from troupe.actors._refs import ObjectRef

KEYS = ("env_vars", "working_dir", "py_modules", "pip", "excludes", "config")
VARIABLE = "TROUPE_RUNTIME_ENV"
PACKAGE_BYTES_MAX = 100 << 20  # Of the files of one folder.
PACKAGE_FILES_MAX = 20_000
MODULES_MAX = 64
REQUIREMENTS_MAX = 500
REQUIREMENTS_BYTES_MAX = 64 << 10  # They travel in an environment variable.
SETUP_TIMEOUT_S = 600.0
_NEVER_PACKED = ("__pycache__", ".git", "*.pyc")


@dataclass
class Package:
    """A folder or a file as its digest and the ref of its ZIP archive."""

    digest: str
    what: str
    archive: ObjectRef


@dataclass
class Environment:
    """What a process sets up before it begins; what it starts itself inherits it."""

    variables: dict[str, str] = field(default_factory=dict)
    working_dir: Optional[Package] = None
    modules: list[Package] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    timeout_s: float = SETUP_TIMEOUT_S

    @property
    def takes_time(self) -> bool:
        """Whether there is more to do than to set variables."""
        return bool(self.working_dir or self.modules or self.requirements)


def check(given: Any) -> dict[str, Any]:
    """A ``runtime_env`` whose parts are of the right kinds; nothing is read.

    Raises:
        TypeError, ValueError: it is not; its key is in the message.
    """
    from troupe.actors import _options

    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"runtime_env must be a dict, not {given!r}")
    _options.check_names(given, KEYS, "runtime_env: environments")
    variables = given.get("env_vars") or {}
    if not isinstance(variables, Mapping):
        raise TypeError(f"runtime_env: env_vars must be a dict, not {variables!r}")
    working_dir = given.get("working_dir")
    if working_dir is not None and not isinstance(working_dir, (str, os.PathLike)):
        raise TypeError(f"runtime_env: working_dir must be a path, not {working_dir!r}")
    modules = given.get("py_modules") or []
    if not isinstance(modules, (list, tuple)) or not all(
            isinstance(module, (str, os.PathLike, ModuleType)) for module in modules):
        raise TypeError(f"runtime_env: py_modules must be a list of paths or modules, "
                        f"not {modules!r}")
    if len(modules) > MODULES_MAX:
        raise ValueError(f"runtime_env: {len(modules)} py_modules, over {MODULES_MAX}")
    excludes = given.get("excludes") or []
    if isinstance(excludes, str) or not all(isinstance(one, str) for one in excludes):
        raise TypeError(f"runtime_env: excludes must be a list of patterns, not {excludes!r}")
    _requirements_of(given.get("pip"))
    _timeout_of(given)
    return dict(given)


def prepare(
    session: _session.Session, options: Mapping[str, Any], native: dict[str, Any]
) -> None:
    """Puts what the process of an actor is to set up into its native options.

    Raises:
        ValueError: a folder cannot be packed; it is named. OSError: it cannot be read.
    """
    made = session.environment or Environment()
    for given in (session.runtime_env, options.get("runtime_env")):
        if given:
            made = _within(session, made, given)
    if made == Environment():
        return
    native["env"] = {**made.variables,
                     VARIABLE: base64.b64encode(pickle.dumps(made)).decode()}
    if options.get("start_timeout") is None and made.takes_time:
        native["timeout_s"] += made.timeout_s


def variables_of(given: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that it asks for."""
    return {str(name): str(value) for name, value in (given.get("env_vars") or {}).items()}


def _within(
    session: _session.Session, outer: Environment, given: Mapping[str, Any]
) -> Environment:
    """What is given, and the rest of it as outside."""
    made = dataclasses.replace(outer, variables={**outer.variables, **variables_of(given)})
    if given.get("pip") is not None:
        made.requirements = _requirements_of(given["pip"])
    if given.get("config") is not None:
        made.timeout_s = _timeout_of(given)
    excludes = tuple(given.get("excludes") or ())
    if given.get("working_dir") is not None:
        path = os.path.abspath(given["working_dir"])
        if not os.path.isdir(path) and not path.endswith(".zip"):
            raise ValueError(f"runtime_env: working_dir {path} is no folder or .zip of this host")
        made.working_dir = _packed(session, path, "", excludes)
    if given.get("py_modules") is not None:
        made.modules = [_packed(session, *_module_path(module), excludes)
                        for module in given["py_modules"]]
    return made


def _module_path(module: Any) -> tuple[str, str]:
    """Where a module is, and under which name it goes into its package."""
    if isinstance(module, ModuleType):
        file = getattr(module, "__file__", None)
        if file is None:
            raise ValueError(f"runtime_env: the module {module.__name__} of py_modules has no file")
        module = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
    path = os.path.abspath(module)
    if not os.path.exists(path):
        raise ValueError(f"runtime_env: there is no {path}, which py_modules names, on this host")
    return path, "" if path.endswith((".whl", ".zip")) else os.path.basename(path)


def _packed(
    session: _session.Session, path: str, prefix: str, excludes: tuple[str, ...]
) -> Package:
    """The package of what lies there now; made once for each state of it."""
    files = _checked_files(path, excludes)
    state = (path, prefix, tuple((name, size, time) for _, name, size, time in files))
    before, known = session.packages.get((path, prefix), (None, None))
    if known is None or before != state:
        data = _archive(path, prefix, files)
        digest = hashlib.sha256(data).hexdigest()
        known = Package(digest, path, _refs.put(pickle.PickleBuffer(data)))
        session.packages[path, prefix] = state, known
    made: Package = known
    return made


def pack_folder(path: str) -> bytes:
    """An archive of what lies in a folder now.

    Raises:
        ValueError: it has too much in it. OSError: it cannot be read.
    """
    return _archive(path, "", _checked_files(path, ()))


def _checked_files(path: str, excludes: tuple[str, ...]) -> list[tuple[str, str, int, int]]:
    files = list(_files(path, excludes))
    total = sum(size for _, _, size, _ in files)
    if total > PACKAGE_BYTES_MAX or len(files) > PACKAGE_FILES_MAX:
        raise ValueError(
            f"runtime_env: {path} has {len(files)} files of {total} bytes, over the limit of "
            f"{PACKAGE_FILES_MAX} files and {PACKAGE_BYTES_MAX} bytes; leave out what is not "
            "needed by `excludes`, or install it on the hosts")
    return files


def _archive(path: str, prefix: str, files: list[tuple[str, str, int, int]]) -> bytes:
    if path.endswith((".whl", ".zip")):
        with open(path, "rb") as file:
            data = file.read()
        if not zipfile.is_zipfile(io.BytesIO(data)):
            raise ValueError(f"runtime_env: {path} is no ZIP archive")
        return data
    with io.BytesIO() as made:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for source, name, _, _ in files:
                inside = prefix if name == "" else os.path.join(prefix, name)
                info = zipfile.ZipInfo(inside)  # Without a time: equal content, equal digest.
                info.external_attr = (os.stat(source).st_mode & 0o777) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                with open(source, "rb") as file:
                    archive.writestr(info, file.read())
        return made.getvalue()


def _files(path: str, excludes: tuple[str, ...]) -> Iterator[tuple[str, str, int, int]]:
    """(path, path within the folder, bytes, time of its change) of what is packed, in order."""
    if not os.path.isdir(path):
        stat = os.stat(path)
        yield path, "", stat.st_size, stat.st_mtime_ns
        return
    patterns = (*_NEVER_PACKED, *excludes)

    def left_out(name: str) -> bool:
        return any(fnmatch.fnmatch(name, one.rstrip("/"))
                   or fnmatch.fnmatch(os.path.basename(name), one.rstrip("/")) for one in patterns)

    for folder, folders, names in os.walk(path):
        relative = os.path.relpath(folder, path)
        inside = "" if relative == "." else relative
        folders[:] = sorted(n for n in folders if not left_out(os.path.join(inside, n)))
        for name in sorted(names):
            full = os.path.join(folder, name)
            if not left_out(os.path.join(inside, name)) and os.path.isfile(full):
                stat = os.stat(full)
                yield full, os.path.join(inside, name), stat.st_size, stat.st_mtime_ns


def _requirements_of(given: Any) -> list[str]:
    """What pip is to install: a list, ``{"packages": [...]}``, or the path of a file of them."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        if set(given) != {"packages"}:
            raise ValueError(f'runtime_env: pip takes {{"packages": [...]}}, not {dict(given)!r}')
        given = given["packages"]
    if isinstance(given, str):
        with open(given, encoding="utf-8") as file:
            lines = (line.partition(" #")[0].strip() for line in file)
            given = [line for line in lines if line and not line.startswith("#")]
    if not isinstance(given, (list, tuple)) or not all(
            isinstance(one, str) and one.strip() for one in given):
        raise TypeError(f"runtime_env: pip must be a list of requirements, not {given!r}")
    if len(given) > REQUIREMENTS_MAX or sum(map(len, given)) > REQUIREMENTS_BYTES_MAX:
        raise ValueError(f"runtime_env: pip has {len(given)} requirements, over "
                         f"{REQUIREMENTS_MAX} or {REQUIREMENTS_BYTES_MAX} bytes")
    return list(given)


def _timeout_of(given: Mapping[str, Any]) -> float:
    config = given.get("config") or {}
    if not isinstance(config, Mapping) or set(config) - {"setup_timeout_seconds"}:
        raise ValueError("runtime_env: config takes {\"setup_timeout_seconds\": ...}, "
                         f"not {config!r}")
    return check_amount("runtime_env: setup_timeout_seconds",
                        config.get("setup_timeout_seconds", SETUP_TIMEOUT_S))
