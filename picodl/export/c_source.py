"""One self-contained C99 file and its header for a model: no allocation, no library but math.h."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from picodl.export import c_kernels
from picodl.export.c_layers import EMITTERS
from picodl.export.c_writer import Writer, literal
from picodl.export.plan import Call, Plan, Value, make_plan
from picodl.saving.files import atomic_write


def write_c(
    model: Any,
    path: str | os.PathLike[str],
    quantize: str | None = None,
    examples: Any = None,
) -> dict[str, int]:
    """Write `path` (.c) and the header beside it.

    The C function is `int NAME_predict(const float *input, float *output)`, with one pointer for
    each input and output and NAME from the file's name. It takes one sample, gives 0, or 1 for an
    embedding id outside of the table, and uses static memory, so it must not run twice at once.

    Args:
        model: a model made from Input symbols, every size known.
        path: of the C file.
        quantize: "int8" stores the kernels in 8 bits with a scale for each output.
        examples: inputs (as for predict) that a test program inside the file compares: compile with
            -DNAME_SELF_TEST in capitals and run it.

    Returns:
        The bytes of the weights and of the memory for intermediate values.

    Raises:
        ValueError: for what cannot be exported, naming the layer.
    """
    if quantize not in (None, "int8"):
        raise ValueError(f'quantize must be None or "int8"; received {quantize!r}.')
    path = os.fspath(path)
    root, ending = os.path.splitext(path)
    if ending != ".c":
        raise ValueError(f"The C source needs a name that ends in .c; received {path!r}.")
    stem = os.path.basename(root)
    name = re.sub(r"[^0-9A-Za-z_]", "_", stem)
    if not name or name[0].isdigit():
        name = f"net_{name}"
    plan, writer = make_plan(model), Writer(quantize)
    memory = _place(plan, writer)
    for call in plan.calls:
        _emit(call, writer)
    for value, target in zip(plan.outputs, _pointers(plan.outputs, "output"), strict=True):
        if writer.place(value) != target:
            writer.call("join", writer.place(value), 1, value.size, value.size, target)
    test = _self_test(model, plan, name, examples) if examples is not None else ""
    header = _header(name, plan)
    files = {path: _source(name, stem, plan, writer, memory, test), f"{root}.h": header}
    for file, text in files.items():
        with atomic_write(file) as f:
            f.write(text.encode("ascii", errors="replace"))
    return {"weights": writer.stored, "memory": 4 * (memory + writer.scratch_size)}


def _emit(call: Call, writer: Writer) -> None:
    emitter = EMITTERS.get(call.kind)
    if emitter is None:
        raise ValueError(
            f'The {call.kind} layer "{call.name}" cannot be exported to C. These can: '
            f"{', '.join(sorted(k for k in EMITTERS if k[0].isupper()))}."
        )
    shape = "x".join(map(str, call.output.shape)) or "1"
    writer.statements.append(f"/* {_in_comment(call.name)}: {call.kind} -> {shape} */")
    emitter(call, writer)


def _in_comment(text: str) -> str:
    """Text that cannot end the comment it stands in."""
    return re.sub(r"[^ -~]|[*\\\\/?]", "_", text)


def _place(plan: Plan, writer: Writer) -> int:
    """Give every buffer a place: a pointer of the caller, or a part of one arena that buffers share
    when they are not alive together. Gives the size of the arena."""
    sizes: dict[int, int] = {}
    last: dict[int, int] = {}
    for time, call in enumerate(plan.calls):
        sizes[call.output.buffer] = call.output.size
        for value in (*call.inputs, call.output):
            if isinstance(value, Value):
                last[value.buffer] = time
    for value, pointer in zip(plan.inputs, _pointers(plan.inputs, "input"), strict=True):
        writer.places[value.buffer] = pointer
    for value, pointer in zip(plan.outputs, _pointers(plan.outputs, "output"), strict=True):
        writer.places.setdefault(value.buffer, pointer)
    end = 0
    alive: list[tuple[int, int, int]] = []  # (start, stop, time of the last use)
    for time, call in enumerate(plan.calls):
        buffer = call.output.buffer
        if buffer in writer.places:
            continue
        alive = sorted(part for part in alive if part[2] >= time)
        start = 0
        for a, b, _ in alive:
            if start + sizes[buffer] <= a:
                break
            start = max(start, b)
        alive.append((start, start + sizes[buffer], last[buffer]))
        end = max(end, start + sizes[buffer])
        writer.places[buffer] = f"arena + {start}" if start else "arena"
    return end


def _pointers(values: list[Value], name: str) -> list[str]:
    return [name] if len(values) == 1 else [f"{name}{i}" for i in range(len(values))]


def _signature(name: str, plan: Plan) -> str:
    arguments = [f"const float *{p}" for p in _pointers(plan.inputs, "input")]
    arguments += [f"float *{p}" for p in _pointers(plan.outputs, "output")]
    return f"int {name}_predict({', '.join(arguments)})"


def _header(name: str, plan: Plan) -> str:
    sizes = []
    for kind, values, names in (
        ("input", plan.inputs, plan.input_names),
        ("output", plan.outputs, plan.output_names),
    ):
        for pointer, value, label in zip(_pointers(values, kind), values, names, strict=True):
            shape = ", ".join(map(str, value.shape))
            comment = f"/* {_in_comment(label)}: ({shape}) */"
            sizes.append(f"#define {name.upper()}_{pointer.upper()}_SIZE {value.size} {comment}")
    guard = f"{name.upper()}_H"
    return f"""/* Written by picodl: {_in_comment(plan.name)}. */
#ifndef {guard}
#define {guard}

{chr(10).join(sizes)}

#ifdef __cplusplus
extern "C" {{
#endif

/* One sample in row-major order; gives 0, or 1 for an id outside of an embedding table.
   It works in static memory: do not run it in two threads at once. */
{_signature(name, plan)};

#ifdef __cplusplus
}}
#endif

#endif
"""


def _source(name: str, stem: str, plan: Plan, writer: Writer, memory: int, test: str) -> str:
    work = [
        f"static float {what}[{size}];\n"
        for what, size in (("arena", memory), ("scratch", writer.scratch_size))
        if size
    ]
    body = "\n".join(f"    {line}" for line in writer.statements)
    blocks = [
        f"/* Written by picodl: {_in_comment(plan.name)}. C99, float32, no allocation. */\n"
        f'#include "{stem}.h"\n\n#include <math.h>\n#include <stdint.h>\n',
        c_kernels.source(writer.kernels),
        *writer.data,
        "".join(work),
        f"{_signature(name, plan)} {{\n{body}\n    return 0;\n}}\n",
        test,
    ]
    return "\n".join(block for block in blocks if block)


def _self_test(model: Any, plan: Plan, name: str, examples: Any) -> str:
    """A main() that runs the examples and compares with what predict gives for them."""
    wanted = model.predict(examples, verbose=0)
    given = examples if isinstance(examples, (list, tuple)) else [examples]
    wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    if len(given) != len(plan.inputs) or len(wanted) != len(plan.outputs):
        raise ValueError(
            f"examples must be an array, or a list with one array for each of the "
            f"{len(plan.inputs)} inputs."
        )
    n = len(np.asarray(given[0]))
    lines = []
    for kind, arrays in (("in", given), ("want", wanted)):
        for i, array in enumerate(arrays):
            flat = np.asarray(array, np.float32).reshape(n, -1)
            numbers = ", ".join(literal(v) for v in flat.ravel())
            lines.append(f"static const float {kind}{i}[{flat.size}] = {{{numbers}}};")
    arguments = [f"in{i} + n * {value.size}" for i, value in enumerate(plan.inputs)]
    arguments += [f"got{i}" for i in range(len(plan.outputs))]
    checks = "\n".join(
        f"        for (int j = 0; j < {value.size}; j++) {{\n"
        f"            const float off = fabsf(got{i}[j] - want{i}[n * {value.size} + j]);\n"
        f"            if (!(off <= worst)) worst = off;\n        }}"
        for i, value in enumerate(plan.outputs)
    )
    got = "\n".join(f"    float got{i}[{v.size}];" for i, v in enumerate(plan.outputs))
    text = "\n".join(lines)
    return f"""#ifdef {name.upper()}_SELF_TEST
#include <stdio.h>

{text}

int main(void) {{
    float worst = 0.0f;
{got}
    for (int n = 0; n < {n}; n++) {{
        if ({name}_predict({", ".join(arguments)})) return 2;
{checks}
    }}
    printf("largest difference: %g\\n", (double)worst);
    return worst <= 1e-4f ? 0 : 1;
}}
#endif
"""
