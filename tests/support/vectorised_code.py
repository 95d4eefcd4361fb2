"""LLVM's code of the vectorised functions for processors that this machine need not have."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from llvmlite import binding, ir

from synkhronos._compiling.vectorised.real import Format, Real


class Processor(NamedTuple):
    """A kind of processor, and how its arithmetic with several numbers and with one is written."""

    triple: str
    name: str
    several: str
    one: str
    call: str


_X86 = (
    r"\bvf?n?m?(?:add|sub|mul)\w*p{0}\s.*%[yz]mm",
    r"\bvf?n?m?(?:add|sub|mul)\w*s{0}\s",
    r"\bcall\w*\s+(\S+)",
)
_ARM = (
    r"\bfn?m?(?:add|sub|mul|la|ls)\s+v\d+\.(?:2d|4s)",
    r"\bfn?m?(?:add|sub|mul)\s+[ds]\d",
    r"\bbl\s+(\S+)",
)
PROCESSORS = {
    "AVX2": Processor("x86_64-unknown-linux-gnu", "x86-64-v3", *_X86),
    "AVX-512": Processor("x86_64-unknown-linux-gnu", "x86-64-v4", *_X86),
    "AArch64": Processor("aarch64-unknown-linux-gnu", "generic", *_ARM),
}


class Counts(NamedTuple):
    """Arithmetic instructions with several numbers and with one, and the functions called."""

    several: int
    one: int
    called: list[str]


@functools.cache
def _initialised() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def counts(function: Callable[..., Real], form: Format, arguments: int, kind: str) -> Counts:
    """Count in the machine code of a loop over the function's values."""
    _initialised()
    processor = PROCESSORS[kind]
    machine = binding.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.name, opt=3
    )
    module = binding.parse_assembly(str(_loop(function, form, arguments)))
    module.triple, module.data_layout = processor.triple, str(machine.target_data)
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    passes = binding.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    code = machine.emit_assembly(module)
    letter = "d" if form.bits == 64 else "s"
    several, one = (processor.several.format(letter), processor.one.format(letter))
    return Counts(
        len(re.findall(several, code)),
        len(re.findall(one, code)),
        re.findall(processor.call, code),
    )


def _loop(function: Callable[..., Real], form: Format, arguments: int) -> ir.Module:
    """out[i] = function(x[i], ...) for all i below a number."""
    module, whole = ir.Module(), ir.IntType(64)
    pointers = [form.type.as_pointer()] * (arguments + 1)
    signature = ir.FunctionType(ir.VoidType(), [*pointers, whole])
    loop = ir.Function(module, signature, "loop")
    *given, out, number = loop.args
    for pointer in (*given, out):
        pointer.add_attribute("noalias")
    before, body, after = (loop.append_basic_block(name) for name in ("before", "body", "after"))
    ir.IRBuilder(before).branch(body)
    builder = ir.IRBuilder(body)
    i = builder.phi(whole)
    values = [Real(builder, builder.load(builder.gep(p, [i]))) for p in given]
    builder.store(function(*values).value, builder.gep(out, [i]))
    following = builder.add(i, ir.Constant(whole, 1))
    i.add_incoming(ir.Constant(whole, 0), before)
    i.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, number), body, after)
    ir.IRBuilder(after).ret_void()
    return module
