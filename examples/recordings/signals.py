"""Filters signals: Fourier transforms, complex numbers, sorting, gathering and scattering."""

import torch


def main() -> None:
    torch.manual_seed(0)
    signals = torch.randn(3, 65)
    spectrum = torch.fft.rfft(signals)
    strongest = spectrum.abs().topk(5, dim=1).indices
    kept = torch.zeros_like(spectrum).scatter(1, strongest, spectrum.gather(1, strongest))
    kept = kept * torch.exp(1j * spectrum.angle().roll(1, 1))
    smooth = torch.fft.irfft(kept, n=65)
    ordered, places = smooth.sort(dim=1, descending=True)
    totals = torch.zeros(3, 9).scatter_add(1, places % 9, ordered)
    counts = torch.bincount((places % 9).flatten(), minlength=9)
    totals.cumsum(1).div_(counts.clamp(min=1)).masked_fill_(totals < 0, 0).amax(1)
    torch.where(totals > 0, totals.log1p(), totals).index_select(0, torch.tensor([2, 0])).sum()


if __name__ == "__main__":
    main()
