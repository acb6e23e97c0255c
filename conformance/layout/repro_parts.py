"""The head of every repro script, and the parts that several judgements share. Plain torch."""

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

REFERENCE = """
args, kwargs = arguments([contiguous(t) for t in tensors])
try:
    want, refused = op(*args, **kwargs), None
except Exception as exc:
    want, refused = None, exc
"""

ON_DEVICE = """
args, kwargs = arguments(tensors)
if kwargs.get("device") is not None:
    kwargs["device"] = DEVICE
"""

FAKE = """
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
