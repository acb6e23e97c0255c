"""Trains a small convolutional network in channels_last under autocast, with SGD."""

import torch


def main() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.GroupNorm(4, 16),
        torch.nn.SiLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 4),
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        images = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), torch.tensor([1, 3]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
