"""Trains a transformer of two layers for two steps, then generates text with a cache of keys and values."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.projection(x).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                keys = torch.cat([cache[0], keys], dim=2)
                values = torch.cat([cache[1], values], dim=2)
            cache[:] = [keys, values]
        causal = cache is None
        found = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
        return self.output(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm(x), cache)
        return x + self.feed_forward(self.other_norm(x))


class Transformer(nn.Module):
    def __init__(self, words: int = 50, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(2)])
        self.norm = nn.LayerNorm(width)

    def forward(
        self, words: torch.Tensor, caches: list[list[torch.Tensor]] | None = None, start: int = 0
    ) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(start, start + words.shape[1]))
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches is not None else None)
        return self.norm(x) @ self.words.weight.T


def main() -> None:
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        words = torch.randint(50, (2, 17))
        classes = model(words[:, :-1])
        loss = nn.functional.cross_entropy(classes.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        caches: list[list[torch.Tensor]] = [[], []]
        word = torch.tensor([[3]])
        for place in range(4):
            word = model(word, caches, place)[:, -1].argmax(-1, keepdim=True)


if __name__ == "__main__":
    main()
