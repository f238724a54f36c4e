"""`python -m picodl inspect FILE`, `convert SOURCE TARGET`, `run SCRIPT` and `compile`."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None for those of the process.

    Returns: the exit status: 0, or 1 after an error, which is told on stderr.
    """
    import picodl

    parser = argparse.ArgumentParser(
        prog="python -m picodl", description="Look at model files, run scripts, compile kernels."
    )
    parser.add_argument("--version", action="version", version=f"picodl {picodl.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="say what a weights or model file holds")
    inspect.add_argument("file", nargs="+", help=".weights.h5, .keras, .h5, .npz or .safetensors")
    convert = commands.add_parser("convert", help="write a file's content in another format")
    convert.add_argument("source")
    convert.add_argument("target", help="its ending says the format")
    run = commands.add_parser("run", help="run a script whose `import keras` then means picodl")
    run.add_argument("--tensorflow", action="store_true", help="and `import tensorflow.keras` too")
    run.add_argument("script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    compiling = commands.add_parser("compile", help="make kernels in C for this processor")
    compiling.add_argument("--remove", action="store_true", help="delete them: numpy alone again")
    given = parser.parse_args(arguments)
    if given.command == "run":
        picodl.as_keras(given.tensorflow)
        sys.argv = [given.script, *given.arguments]
        sys.path[0] = str(Path(given.script).resolve().parent)
        runpy.run_path(given.script, run_name="__main__")
        return 0
    try:
        if given.command == "inspect":
            for file in given.file:
                print(picodl.saving.describe(file))
        elif given.command == "convert":
            picodl.saving.convert(given.source, given.target)
        elif given.remove:
            picodl.compiled.remove()
        else:
            print(f"{picodl.compiled.build()}: in use from now on")
    except (OSError, RuntimeError, ValueError) as error:
        print(f"picodl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
