"""How repro scripts judge calls that read: values, strides, aliasing, the bytes of inputs."""

from __future__ import annotations

from conformance.layout.repro_parts import FAKE, ON_DEVICE, REFERENCE

JUDGEMENTS: dict[str, str] = {}

JUDGEMENTS["values"] = (
    REFERENCE
    + ON_DEVICE
    + """
try:
    got = op(*args, **kwargs)
except Exception as exc:
    finish(None if refused else f"raised {type(exc).__name__}: {exc}; the CPU does not for contiguous inputs")
if refused:
    finish(f"returned a result where the CPU raises {type(refused).__name__}: {refused}")
finish(wrong(got, want))
"""
)

JUDGEMENTS["output_strides"] = (
    FAKE
    + ON_DEVICE
    + """
got = [significant(t.shape, t.stride()) for t in flat(op(*args, **kwargs)) if t.layout == torch.strided]
if fake_refused:
    finish(f"FakeTensor has no answer any more: {fake_refused}")
want = [significant(t.shape, t.stride()) for t in flat(fake)]
finish(f"output strides {got}, FakeTensor says {want}" if got != want else None)
"""
)

JUDGEMENTS["output_fresh"] = (
    ON_DEVICE
    + """
problem = None
for place, out in enumerate(t for t in flat(op(*args, **kwargs)) if t.layout == torch.strided):
    storage = out.untyped_storage()
    for number, (base, *_) in enumerate(bases):
        other = base.untyped_storage()
        start, at = storage.data_ptr(), other.data_ptr()
        overlap = start and at and storage.nbytes() and at < start + storage.nbytes() and start < at + other.nbytes()
        if (storage._cdata == other._cdata or overlap) and THROUGH.get(place) != number:
            problem = f"output {place} shares memory with input {number}"
    if out.numel():
        last = out.storage_offset() + sum((n - 1) * s for n, s in zip(out.shape, out.stride()))
        if (last + 1) * out.element_size() > storage.nbytes():
            problem = f"output {place} reaches past its storage"
finish(problem)
"""
)

JUDGEMENTS["inputs_intact"] = (
    ON_DEVICE
    + """
try:
    op(*args, **kwargs)
except Exception as exc:
    print(f"the call raised {type(exc).__name__}: {exc}")
bad = [(n, c) for n, c in enumerate(changed()) if c[0] or c[1]]
finish(f"(input, [bytes of elements, between, outside]) changed: {bad}" if bad else None)
"""
)

JUDGEMENTS["bounds"] = (
    ON_DEVICE
    + """
try:
    op(*args, **kwargs)
except Exception as exc:
    print(f"the call raised {type(exc).__name__}: {exc}")
bad = [(n, c) for n, c in enumerate(changed()) if c[2]]
finish(f"(input, [bytes of elements, between, outside]) changed: {bad}" if bad else None)
"""
)

JUDGEMENTS["views"] = (
    REFERENCE
    + FAKE
    + ON_DEVICE
    + """
got = [t for t in flat(op(*args, **kwargs)) if t.layout == torch.strided]
problem = None
for place, (out, spec) in enumerate(zip(got, flat(fake) if fake is not None else [])):
    owner = [n for n, f in enumerate(fakes) if f.untyped_storage()._cdata == spec.untyped_storage()._cdata]
    cpu = flat(want)[place]
    if (out.is_conj(), out.is_neg()) != (cpu.is_conj(), cpu.is_neg()):
        problem = f"output {place}: conj, neg bits {(out.is_conj(), out.is_neg())}, the CPU's {(cpu.is_conj(), cpu.is_neg())}"
    if not owner:
        continue
    base, before, _, _ = bases[owner[0]]
    if out.untyped_storage()._cdata != base.untyped_storage()._cdata:
        problem = f"output {place} does not share the storage of input {owner[0]}"
    elif significant(out.shape, out.stride()) != significant(spec.shape, spec.stride()):
        problem = f"output {place} has strides {out.stride()}, FakeTensor says {spec.stride()}"
    elif out.numel() and out.storage_offset() != spec.storage_offset():
        problem = f"output {place} has offset {out.storage_offset()}, FakeTensor says {spec.storage_offset()}"
    elif out.numel() and 0 not in out.stride() and not out.is_conj() and not out.is_neg():
        held = before.clone()
        usable = len(held) // out.element_size() * out.element_size()
        held[:usable].view(out.dtype).as_strided(out.shape, out.stride(), out.storage_offset()).fill_(1)
        out.fill_(1)
        if not torch.equal(base.cpu(), held):
            problem = f"output {place}: a write through the view is not what the base holds"
        base.copy_(before)
        held = before[:usable].view(out.dtype).as_strided(out.shape, out.stride(), out.storage_offset())
        if problem is None and wrong(out, held):
            problem = f"output {place}: a write to the base is not what the view holds"
finish(problem)
"""
)

JUDGEMENTS["determinism"] = (
    ON_DEVICE
    + """
import ctypes
import platform

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
M_PERTURB = -6  # malloc.h: fresh memory is filled with the complement of the value
glibc = DEVICE == "cpu" and platform.libc_ver()[0] == "glibc"


def once(byte):
    # one call, over fresh memory that holds this byte
    if glibc:
        ctypes.CDLL(None).mallopt(M_PERTURB, byte ^ 0xFF)
    try:
        return [t.cpu().clone() for t in flat(op(*args, **kwargs))]
    except RuntimeError as exc:
        return str(exc)
    finally:
        if glibc:
            ctypes.CDLL(None).mallopt(M_PERTURB, 0)


first, second = once(0), once(1)
if isinstance(first, str) or isinstance(second, str):
    finish(None if isinstance(first, str) and isinstance(second, str) else "one of two equal calls raised")


def bits(tensor):
    whole = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return whole.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


same = all(torch.equal(bits(a), bits(b)) for a, b in zip(first, second))
finish(None if same else "two equal calls differ in their bits")
"""
)

JUDGEMENTS["fp32_precision"] = (
    ON_DEVICE
    + """
torch.set_float32_matmul_precision("highest")
got = flat(op(*args, **kwargs))
args, kwargs = arguments([contiguous(t).double() if t.is_floating_point() else contiguous(t) for t in tensors])
worst = 0.0
for g, w in zip(got, flat(op(*args, **kwargs))):
    if w.is_floating_point() and float(w.norm()):
        worst = max(worst, float((g.cpu().double() - w).norm() / w.norm()))
finish(f"relative error {worst:.3g} against float64, float32's level is {LIMIT:g}" if not worst <= LIMIT else None)
"""
)

JUDGEMENTS["directed"] = """
try:
    problem = CHECK()
except Exception as exc:
    problem = f"raised {type(exc).__name__}: {exc}"
finish(None if problem == "not applicable" else problem)
"""

JUDGEMENTS["views_bits"] = """
turn = torch.conj if TURN == "conj" else torch._neg_view
cpu = [contiguous(t) for t in tensors]


def call(first, rest):
    args, kwargs = arguments([first, *rest])
    return op(*args, **kwargs)


lazily = call(turn(cpu[0]), cpu[1:])
want = call(turn(cpu[0]).resolve_conj().resolve_neg(), cpu[1:])
there = [t.to(DEVICE) for t in cpu]
try:
    got = call(turn(there[0]), there[1:])
except Exception as exc:
    finish(f"raised {type(exc).__name__}: {exc}")
problem = None
for g, l in zip(flat(got), flat(lazily)):
    if (g.is_conj(), g.is_neg()) != (l.is_conj(), l.is_neg()):
        problem = f"conj, neg bits {(g.is_conj(), g.is_neg())}, the CPU's {(l.is_conj(), l.is_neg())}"
resolve = lambda r: [t.resolve_conj().resolve_neg().cpu() for t in flat(r)]
finish(problem or wrong(resolve(got), resolve(want)))
"""
