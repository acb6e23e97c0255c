"""The text that repro scripts are made of. Plain torch, short enough to read in a bug report."""

HEADER = '''\
"""{clause}: {cell}, layout {layout}

Written by torch-conformance on torch {torch}.
Exits 1 while the fault is there, 0 when it is gone. Needs torch only.
"""

import base64
import sys
import warnings
import zlib

import torch
{module}
DEVICE = {device!r}
GUARD = 512  # known bytes behind every view
bases = []  # (storage as uint8, the bytes it held) of every tensor made below
torch.set_num_threads(1)
torch.set_grad_enabled(False)
warnings.simplefilter("ignore")


def dense(data, dtype, size):
    """A contiguous tensor: ``data`` is a list of values, or compressed bytes."""
    if isinstance(data, str):
        raw = bytearray(zlib.decompress(base64.b64decode(data)))
        return torch.frombuffer(raw, dtype=dtype).reshape(size) if raw else torch.empty(size, dtype=dtype)
    return torch.tensor(data, dtype=dtype).reshape(size)


def strided(data, dtype, size, stride, offset, extent):
    """A view of this size, stride and storage offset into a larger buffer of known bytes."""
    nbytes = max(extent, offset + torch.Size(size).numel()) * dtype.itemsize + GUARD
    nbytes += -nbytes % 16
    known = 0xFF if dtype.is_floating_point or dtype.is_complex else 0x5B
    base = torch.full((nbytes,), known, dtype=torch.uint8)
    index = torch.zeros(size, dtype=torch.int64) + offset
    for dim, (n, step) in enumerate(zip(size, stride)):
        index += (torch.arange(n) * step).view([-1 if d == dim else 1 for d in range(len(size))])
    base.view(dtype)[index.view(-1)] = dense(data, dtype, size).reshape(-1)
    there = base.to(DEVICE)
    bases.append((there, base.clone(), index, dtype))
    return there.view(dtype).as_strided(size, stride, offset)


def contiguous(tensor):
    """A contiguous copy on the CPU: what the reference reads."""
    if tensor.layout != torch.strided:
        return tensor.cpu().clone()
    return tensor.cpu().clone(memory_format=torch.contiguous_format)


def flat(result):
    """The tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = result.values()
    return [t for r in result for t in flat(r)] if isinstance(result, (tuple, list)) or hasattr(result, "__iter__") and not isinstance(result, str) else []


def wrong(got, want):
    """The first difference between two results, or None."""
    got_all, want_all = flat(got), flat(want)
    if len(got_all) != len(want_all):
        return f"{{len(want_all)}} tensors expected, {{len(got_all)}} came"
    if not want_all and got != want and not (got != got and want != want):
        return f"expected {{want}}, got {{got}}"
    for g, w in zip(got_all, want_all):
        g = g.cpu()
        if g.dtype != w.dtype or g.shape != w.shape:
            return f"expected {{w.dtype}} {{tuple(w.shape)}}, got {{g.dtype}} {{tuple(g.shape)}}"
        rtol, atol = RTOL_ATOL.get(str(w.dtype)[6:], (0.0, 0.0))
        if ROUNDINGS and rtol and w.numel():
            sizes = w.abs()[w.isfinite()]
            atol = max(atol, ROUNDINGS * rtol * float(sizes.max())) if sizes.numel() else atol
        try:
            torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        except AssertionError as problem:
            return str(problem)
    return None


def significant(tensor_size, tensor_stride):
    """The strides of dimensions longer than 1."""
    if 0 in tensor_size:
        return ()
    return tuple(s for n, s in zip(tensor_size, tensor_stride) if n > 1)


def changed():
    """How many bytes of the inputs' storages changed, by place."""
    found = []
    for number, (there, before, index, dtype) in enumerate(bases):
        differs = there.cpu() != before
        mine = torch.zeros(len(before), dtype=torch.uint8)
        usable = len(before) // dtype.itemsize * dtype.itemsize
        mine[:usable].view(-1, dtype.itemsize)[index.view(-1)] = 1
        span = torch.zeros_like(differs)
        if index.numel():
            span[int(index.min()) * dtype.itemsize : (int(index.max()) + 1) * dtype.itemsize] = True
        inside, between, outside = mine.bool(), span & ~mine.bool(), ~span
        found.append([int((differs & part).sum()) for part in (inside, between, outside)])
    return found


def finish(problem):
    """Say what is wrong and exit 1, or exit 0."""
    print(f"FAULT: {{problem}}" if problem else "no fault")
    sys.exit(1 if problem else 0)
'''

_REFERENCE = """
args, kwargs = arguments([contiguous(t) for t in tensors])
try:
    want, refused = op(*args, **kwargs), None
except Exception as exc:
    want, refused = None, exc
"""

_ON_DEVICE = """
args, kwargs = arguments(tensors)
if kwargs.get("device") is not None:
    kwargs["device"] = DEVICE
"""

_FAKE = """
# FakeTensor says which strides the result should have.
from torch._subclasses.fake_tensor import FakeTensorMode

with FakeTensorMode():
    fakes = []
    for t in tensors:
        need = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1
        whole = torch.empty((max(need, 0),), dtype=t.dtype, device=DEVICE)
        fakes.append(whole.as_strided(t.shape, t.stride(), t.storage_offset()))
    args, kwargs = arguments(fakes)
    try:
        fake, fake_refused = op(*args, **kwargs), None
    except Exception as exc:
        fake, fake_refused = None, exc
"""

JUDGEMENTS: dict[str, str] = {}

JUDGEMENTS["values"] = (
    _REFERENCE
    + _ON_DEVICE
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
    _FAKE
    + _ON_DEVICE
    + """
got = [significant(t.shape, t.stride()) for t in flat(op(*args, **kwargs)) if t.layout == torch.strided]
if fake_refused:
    finish(f"FakeTensor has no answer any more: {fake_refused}")
want = [significant(t.shape, t.stride()) for t in flat(fake)]
finish(f"output strides {got}, FakeTensor says {want}" if got != want else None)
"""
)

JUDGEMENTS["output_fresh"] = (
    _ON_DEVICE
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
    _ON_DEVICE
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
    _ON_DEVICE
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
    _REFERENCE
    + _FAKE
    + _ON_DEVICE
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

_TARGETS = """
known = []  # (target, its storage, the storage's bytes, its elements)
for dtype, size, stride, offset, extent in TARGETS:
    fill = True if dtype == torch.bool else float("nan") if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max
    target = strided([fill] * torch.Size(size).numel(), dtype, size, stride, offset, extent)
    known.append((target, *bases.pop()))
targets = [k[0] for k in known]
out = targets[0] if FORM == "tensor" else targets if FORM == "list" else tuple(targets)
addresses = [t.data_ptr() for t in targets]
"""

JUDGEMENTS["out_kept"] = (
    _REFERENCE
    + _ON_DEVICE
    + _TARGETS
    + """
try:
    op(*args, **kwargs, out=out)
except Exception as exc:
    finish(f"out= of the right shape raised {type(exc).__name__}: {exc}")
problem = None
for (dtype, size, stride, _, _), target, address, value in zip(TARGETS, targets, addresses, flat(want)):
    if target.data_ptr() != address or target.stride() != stride:
        problem = f"out was moved or restrided: {stride} became {target.stride()}"
    else:
        problem = problem or wrong(target, value)
finish(problem)
"""
)

JUDGEMENTS["out_bounds"] = (
    _ON_DEVICE
    + _TARGETS
    + """
op(*args, **kwargs, out=out)
problem = None
for target, base, before, index, dtype in known:
    mine = torch.zeros(len(before), dtype=torch.uint8)
    usable = len(before) // dtype.itemsize * dtype.itemsize
    mine[:usable].view(-1, dtype.itemsize)[index.view(-1)] = 1
    bad = int(((base.cpu() != before) & ~mine.bool()).sum())
    if bad:
        problem = f"{bad} bytes outside out= changed"
finish(problem)
"""
)

JUDGEMENTS["out_resize"] = (
    _REFERENCE
    + _ON_DEVICE
    + """
def target(size, dtype):
    if HOW == "empty":
        return torch.empty((0,), dtype=dtype, device=DEVICE)
    if HOW == "wrong_device":
        return torch.zeros(size, dtype=dtype, device="meta" if DEVICE.startswith("cpu") else "cpu")
    if HOW == "wrong_dtype":
        unsafe = torch.float32 if dtype.is_complex else torch.int64 if dtype.is_floating_point else torch.bool
        return torch.zeros(size, dtype=unsafe, device=DEVICE)
    count = torch.Size(size).numel()
    flat_size = (count + 2,) if count else (2, 3)
    return torch.zeros(flat_size if flat_size != tuple(size) else (2, 3), dtype=dtype, device=DEVICE)


targets = [target(size, dtype) for size, dtype in SPECS]
out = targets[0] if FORM == "tensor" else targets if FORM == "list" else tuple(targets)
refused, caught = None, []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        op(*args, **kwargs, out=out)
    except Exception as exc:
        refused = exc
if HOW in ("wrong_dtype", "wrong_device"):
    right = isinstance(refused, (RuntimeError, TypeError))
    finish(None if right else f"RuntimeError or TypeError expected for {HOW}, got {refused!r}")
if refused is not None:
    finish(None if HOW == "wrong_shape" and isinstance(refused, (RuntimeError, TypeError, ValueError)) else f"raised {refused!r}")
problem = wrong(out, want)
if HOW == "wrong_shape" and not any("resized" in str(w.message) for w in caught):
    problem = problem or "a non-empty out= of another shape was resized without a warning"
finish(problem)
"""
)

_INPLACE = """
itself = tensors[0]
address, strides = itself.data_ptr(), itself.stride()
"""

JUDGEMENTS["inplace"] = (
    _REFERENCE
    + _ON_DEVICE
    + _INPLACE
    + """
raised = None
try:
    method(*args, **kwargs)
except Exception as exc:
    raised = exc
before = arguments(tensors)[0][0]
if refused:
    finish(None if raised else "returned where the CPU's functional op raises")
must = want.shape != itself.shape or not torch.can_cast(want.dtype, itself.dtype)
if raised:
    finish(None if must else f"raised {type(raised).__name__}: {raised}; the functional op does not")
if must:
    finish("did not raise although the result does not fit self")
if itself.data_ptr() != address or itself.stride() != strides:
    finish(f"self was moved or restrided: {strides} became {itself.stride()}")
finish(wrong(itself, want.to(itself.dtype)))
"""
)

JUDGEMENTS["inplace_bounds"] = (
    _ON_DEVICE
    + _INPLACE
    + """
try:
    method(*args, **kwargs)
except Exception as exc:
    print(f"the call raised {type(exc).__name__}: {exc}")
bad = changed()[0]
finish(f"bytes between and outside self's elements changed: {bad[1:]}" if bad[1] or bad[2] else None)
"""
)

JUDGEMENTS["inplace_broadcast"] = (
    _ON_DEVICE
    + _INPLACE
    + """
args, kwargs = arguments([tensors[0].narrow(DIM, 0, 1).clone(), *tensors[1:]])
try:
    method(*args, **kwargs)
except RuntimeError:
    finish(None)
except Exception as exc:
    finish(f"raised {type(exc).__name__}, RuntimeError expected")
finish("accepted an operand that would need a larger self")
"""
)

JUDGEMENTS["variants"] = (
    _ON_DEVICE
    + """
from torch.testing._internal.common_methods_invocations import op_db

info = next(o for o in op_db if o.full_name == OP_ID)


def fresh():
    args, kwargs = arguments([t.clone() for t in tensors])
    if kwargs.get("device") is not None:
        kwargs["device"] = DEVICE
    return args, kwargs


args, kwargs = fresh()
want = op(*args, **kwargs)
args, kwargs = fresh()
try:
    if VARIANT == "out":
        given = [torch.empty_like(t) for t in flat(want)]
        got = given[0] if isinstance(want, torch.Tensor) else type(want)(given) if isinstance(want, list) else tuple(given)
        op(*args, **kwargs, out=got)
    else:
        variant = {"method": info.method_variant, "operator": info.operator_variant}
        variant |= {"inplace": info.inplace_variant, "inplace_operator": info.inplace_operator_variant}
        got = variant[VARIANT](*args, **kwargs)
except Exception as exc:
    finish(f"the {VARIANT} variant raised {type(exc).__name__}: {exc}")
if VARIANT.startswith("inplace"):
    want = want.to(args[0].dtype)
finish(wrong(got, [w.cpu() for w in flat(want)]))
"""
)

JUDGEMENTS["overlap_raises"] = (
    _REFERENCE
    + """
def refuses(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as exc:
            print(f"refused: {type(exc).__name__}: {exc}")
            return True
    return any("memory" in str(w.message) for w in caught)


def expanded(like):
    dim = next(d for d, n in enumerate(like.shape) if n > 1)
    stride, step = [0] * like.dim(), 1
    for d in reversed(range(like.dim())):
        if d != dim:
            stride[d] = step
            step *= max(like.shape[d], 1)
    base = torch.full((step + like.numel() + 32,), 91, device=DEVICE).to(like.dtype)
    return base, step, base.as_strided(like.shape, stride)


cpu = [contiguous(t).to(DEVICE) for t in tensors]
outside = None
if HOW == "self=expanded":
    base, used, target = expanded(cpu[0])
    target.narrow(next(d for d, s in enumerate(target.stride()) if s == 0), 0, 1).copy_(
        cpu[0].narrow(next(d for d, s in enumerate(target.stride()) if s == 0), 0, 1)
    )
    args, kwargs = arguments([target, *cpu[1:]])
    held = base[used:].clone()
    refused = refuses(lambda: method(*args, **kwargs))
    outside = not torch.equal(base[used:], held)
elif HOW == "out=expanded":
    made = [expanded(w) for w in flat(want)]
    held = [base[used:].clone() for base, used, _ in made]
    args, kwargs = arguments(cpu)
    out = made[0][2] if isinstance(want, torch.Tensor) else type(want)([m[2] for m in made]) if isinstance(want, list) else tuple(m[2] for m in made)
    refused = refuses(lambda: op(*args, **kwargs, out=out))
    outside = any(not torch.equal(base[used:], h) for (base, used, _), h in zip(made, held))
else:
    both = torch.zeros(cpu[0].numel() + 1, dtype=cpu[0].dtype, device=DEVICE)
    view = both[:-1].view(cpu[0].shape)
    view.copy_(cpu[0])
    args, kwargs = arguments([view, *cpu[1:]])
    refused = refuses(lambda: op(*args, **kwargs, out=both[1:].view(cpu[0].shape)))
if outside:
    finish("bytes outside the overlapping target changed")
finish("wrote to overlapping memory without an error or a warning" if MUST and not refused else None)
"""
)

JUDGEMENTS["determinism"] = (
    _ON_DEVICE
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
same = all(torch.equal(a, b) or torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)) for a, b in zip(first, second))
finish(None if same else "two equal calls differ in their bits")
"""
)

JUDGEMENTS["fp32_precision"] = (
    _ON_DEVICE
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
