"""The library of kernels made by a C compiler of this machine for its processor."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from picodl.compiled import cache

_FLAGS = (
    *("-O3", "-std=gnu11", "-fopenmp-simd"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
_TUNING = (  # the first that the compiler knows
    ("-march=native", "-mprefer-vector-width=512"),
    ("-march=native",),
    ("-mcpu=native",),
    (),
)


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.[ch]"))


def library() -> Path:
    """Where the library of these sources for this processor lies."""
    digest = hashlib.sha256(repr((_FLAGS, _TUNING, _processor())).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return cache() / f"kernels-{digest.hexdigest()[:16]}{'.dll' if os.name == 'nt' else '.so'}"


def _processor() -> str:
    """What tells processors apart whose instructions differ."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.system()} {platform.machine()} {flags}"


def compile_to(path: Path) -> None:
    """Make the library, whole or not at all.

    Raises:
        RuntimeError: if there is no C compiler, or it fails.
    """
    command = compiler()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    sources = [str(source) for source in _sources() if source.suffix == ".c"]
    message = ""
    with tempfile.TemporaryDirectory(prefix="kernels-", dir=path.parent) as folder:
        made = Path(folder, path.name)
        for tuning in _TUNING:
            flags = [*_FLAGS, *tuning, "-shared", "-fPIC"]
            done = subprocess.run(
                [*command, *flags, "-o", str(made), *sources],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                made.chmod(0o700)  # whatever the umask: what others may write is not loaded
                os.replace(made, path)
                return
            message = message or done.stderr.strip()[-2000:]
    raise RuntimeError(f"The C compiler {' '.join(command)} failed:\n{message}")


def compiler() -> list[str]:
    """The command of a C compiler.

    Raises:
        RuntimeError: if there is none.
    """
    named = os.environ.get("CC") or ""
    for command in (named, "cc", "gcc", "clang", sysconfig.get_config_var("CC") or ""):
        parts = command.split()
        if parts and shutil.which(parts[0]):
            return parts
    raise RuntimeError(
        "No C compiler was found. Install gcc or clang, or name one in the variable CC."
    )
