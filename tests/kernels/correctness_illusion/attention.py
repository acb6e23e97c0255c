"""Attention of one head: query by query, and in blocks of keys with a running maximum (flash attention)."""

import torch


def reference(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def samples():
    random = torch.Generator().manual_seed(0)
    for queries, keys, length in ((1, 1, 8), (2, 3, 16), (8, 16, 8), (2, 64, 8), (3, 129, 64)):
        shapes = (queries, length), (keys, length), (keys, length)
        yield tuple(torch.empty(each).uniform_(-10, 10, generator=random) for each in shapes)


def _each_query(q, k, v, scale):
    """All keys of a query at once."""
    scores = (q.float()[:, None] * k.float()).sum(-1) * scale
    weights = torch.softmax(scores, -1)
    return (weights[..., None] * v.float()).sum(1).to(q.dtype)


def attention_triton(q, k, v):
    return _each_query(q, k, v, q.shape[1] ** -0.5)


def attention_triton_buggy(q, k, v):
    """The scores are not divided by the square root of the head's size."""
    return _each_query(q, k, v, 1.0)


def _in_blocks(q, k, v, rescaled):
    keys, scale = k.shape[0], q.shape[1] ** -0.5
    if not keys:
        return torch.zeros(q.shape[0], v.shape[1], dtype=q.dtype)
    block = max(8, min(32, 1 << max(keys - 1, 0).bit_length()))
    largest = torch.full((q.shape[0], 1), float("-inf"))
    total, weighted = torch.zeros(q.shape[0], 1), torch.zeros(q.shape[0], v.shape[1])
    for start in range(0, keys, block):
        scores = q.float() @ k[start : start + block].float().mT * scale
        before, largest = largest, torch.maximum(largest, scores.amax(1, keepdim=True))
        alpha, weights = (before - largest).exp(), (scores - largest).exp()
        total = total * alpha + weights.sum(1, keepdim=True)
        if rescaled:
            weighted = weighted * alpha
        weighted = weighted + weights @ v[start : start + block].float()
    return (weighted / total).to(q.dtype)


def flash_attention_triton(q, k, v):
    return _in_blocks(q, k, v, rescaled=True)


def flash_attention_triton_buggy(q, k, v):
    """The weighted sum is not rescaled when the maximum grows."""
    return _in_blocks(q, k, v, rescaled=False)
