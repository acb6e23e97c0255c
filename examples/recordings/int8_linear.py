"""Runs a linear layer whose weight is stored in int8, with one scale for each output."""

import torch


class Int8Linear(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scales = weight.abs().amax(1) / 127
        self.register_buffer("scales", scales)
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scales


def main() -> None:
    torch.manual_seed(0)
    layer = Int8Linear(torch.randn(48, 64))
    found = layer(torch.randn(5, 64))
    rows = (found[:, :8] * 10).round().clamp(-128, 127).to(torch.int8)
    torch._int_mm(rows.contiguous(), layer.weight[:8, :8].contiguous())
    # in float32: of bfloat16 the CPU's kernel takes aligned tensors alone (docs/found-cpu.md)
    packed = (torch.randn(16, 32) * 40).round().clamp(-128, 127).to(torch.int8)
    torch._weight_int8pack_mm(torch.randn(3, 32), packed, torch.rand(16))


if __name__ == "__main__":
    main()
