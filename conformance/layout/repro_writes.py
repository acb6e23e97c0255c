"""How repro scripts judge calls that write: out=, in place, variants, overlap."""

from __future__ import annotations

from conformance.layout.repro_parts import ON_DEVICE, REFERENCE

JUDGEMENTS: dict[str, str] = {}

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
    REFERENCE
    + ON_DEVICE
    + _TARGETS
    + """
try:
    op(*args, **kwargs, out=out)
except Exception as exc:
    finish(f"out= of the right shape raised {type(exc).__name__}: {exc}")
problem = None
for (dtype, size, stride, _, _), target, address, value in zip(TARGETS, targets, addresses, flat(want)):
    if target.data_ptr() != address or significant(target.shape, target.stride()) != significant(size, stride):
        problem = f"out was moved or restrided: {stride} became {target.stride()}"
    else:
        problem = problem or wrong(target, value)
finish(problem)
"""
)

JUDGEMENTS["out_bounds"] = (
    ON_DEVICE
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
    REFERENCE
    + ON_DEVICE
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
address, size, strides = itself.data_ptr(), itself.shape, itself.stride()
"""

JUDGEMENTS["inplace"] = (
    REFERENCE
    + ON_DEVICE
    + _INPLACE
    + """
raised = None
try:
    method(*args, **kwargs)
except Exception as exc:
    raised = exc
if refused:
    finish(None if raised else "returned where the CPU's functional op raises")
must = not RESTRIDES and (want.shape != size or not torch.can_cast(want.dtype, itself.dtype))
if raised:
    finish(None if must else f"raised {type(raised).__name__}: {raised}; the functional op does not")
if must:
    finish("did not raise although the result does not fit self")
kept = itself.shape == size and significant(size, itself.stride()) == significant(size, strides)
if not RESTRIDES and (itself.data_ptr() != address or not kept):
    finish(f"self was moved or restrided: {strides} became {itself.stride()}")
finish(wrong(itself, want.to(itself.dtype)))
"""
)

JUDGEMENTS["inplace_bounds"] = (
    ON_DEVICE
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

JUDGEMENTS["variants"] = (
    ON_DEVICE
    + """
from torch.testing._internal.common_methods_invocations import op_db

info = next(o for o in op_db if o.full_name == OP_ID)


def fresh():
    args, kwargs = arguments([t.clone() for t in tensors])
    if kwargs.get("device") is not None:
        kwargs["device"] = DEVICE
    return args, kwargs


def unlikely(dtype):
    if dtype == torch.bool:
        return True
    floats = dtype.is_floating_point or dtype.is_complex
    return float("nan") if floats else torch.iinfo(dtype).max


def settled(result):
    # Some devices raise when a result is read, not before.
    for t in flat(result):
        t.cpu()
    return result


want, refused, expected = None, None, None
args, kwargs = fresh()
try:
    want = settled(op(*args, **kwargs))
except Exception as exc:
    refused = exc
    cpu_args, cpu_kwargs = arguments([contiguous(t) for t in tensors])
    expected = op(*cpu_args, **cpu_kwargs)
args, kwargs = fresh()
try:
    if VARIANT == "out":
        shape = want if refused is None else expected
        # Known values, not fresh memory, which may hold the right result by chance.
        given = [torch.full_like(t, unlikely(t.dtype), device=DEVICE) for t in flat(shape)]
        got = given[0] if isinstance(shape, torch.Tensor) else type(shape)(given) if isinstance(shape, list) else tuple(given)
        op(*args, **kwargs, out=got)
    else:
        variant = {"method": info.method_variant, "operator": info.operator_variant}
        variant |= {"inplace": info.inplace_variant, "inplace_operator": info.inplace_operator_variant}
        got = variant[VARIANT](*args, **kwargs)
    settled(got)
except Exception as exc:
    finish(None if refused else f"the {VARIANT} variant raised {type(exc).__name__}: {exc}")
if refused:
    finish(f"the function raises {type(refused).__name__}: {refused}; the {VARIANT} variant does not")
if VARIANT.startswith("inplace"):
    want = want.to(args[0].dtype)
finish(wrong(got, [w.cpu() for w in flat(want)]))
"""
)

JUDGEMENTS["overlap_raises"] = (
    REFERENCE
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
