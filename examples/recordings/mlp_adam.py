"""Trains a small network with Adam: linear layers, a layer norm, a loss."""

import torch


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(20, 33), torch.nn.ReLU(), torch.nn.LayerNorm(33)
        )
        self.head = torch.nn.Linear(33, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def main() -> None:
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        classes = network(torch.randn(7, 20))
        torch.nn.functional.cross_entropy(classes, torch.randint(5, (7,))).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
