"""Trains a small transformer for two steps on the device of ``--device``, then predicts: a program for ``conform locate``."""

import argparse

import torch
from torch import nn

WORDS, LENGTH, WIDTH = 50, 16, 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], words.device)
        x = self.blocks(self.words(words) + self.places(places), mask, is_causal=True)
        return self.norm(x) @ self.words.weight.T


def train(device: str, steps: int = 2) -> list[torch.Tensor]:
    """Trains the model. Returns the losses, the parameters, and the words that the model predicts."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    text = torch.randint(WORDS, (4, LENGTH + 1)).to(device)
    found = []
    for _ in range(steps):
        classes = model(text[:, :-1])
        loss = nn.functional.cross_entropy(classes.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.detach())
    model.eval()
    with torch.no_grad():
        predicted = model(text[:, :-1]).argmax(-1)
    return [*found, *(each.detach() for each in model.parameters()), predicted]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    losses = train(options.parse_args().device)[:2]
    print("losses:", ", ".join(f"{each.item():.4f}" for each in losses))


if __name__ == "__main__":
    main()
