"""Cases about sharded training: FSDP2, a pipeline of two stages, and checkpoints of distributed tensors."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
from torch import nn

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.distributed.groups import Ranks, join
from conformance.suites.distributed.tensors import VIEWS, lay, mesh_of, part_of, placement
from conformance.suites.distributed.training import ATOL, RTOL, STEPS, loss, optimiser
from devices.failure import Kind

cases = Cases(Kind.VALUES)

Tensor = torch.Tensor


class Tied(nn.Module):
    """A network whose output layer uses the weights of its embedding. The weights have an odd number of rows, so that
    the shards have different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(7, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x.abs() * 100).long() % 7
        out: Tensor = self.out(self.inner(self.embedding(tokens[:, :3])).relu()).flatten(1)
        return out


def _blocks() -> nn.Module:
    """Returns two blocks with parameters of odd sizes. All parameters are contiguous, because fully_shard refuses
    others."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5)),
        nn.Sequential(nn.Linear(5, 9), nn.Tanh()),
    )


NETWORKS = {"blocks": _blocks, "checkpointed": _blocks, "tied": Tied}


def _network(name: str, ranks: Ranks) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return NETWORKS[name]().to(ranks.device)


def _shard(name: str, made: nn.Module, mesh: Any) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    if isinstance(made, nn.Sequential):
        for place, block in enumerate(made):
            made[place] = checkpoint_wrapper(block) if name == "checkpointed" else block
            fully_shard(made[place], mesh=mesh)
    fully_shard(made, mesh=mesh)


def _batch(ranks: Ranks, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return ranks.put(torch.randn(4, 6, generator=generator))


def _shards(context: CaseContext, name: str) -> None:
    ranks = join(context)
    one, made = _network(name, ranks), _network(name, ranks)
    _shard(name, made, mesh_of(ranks))
    mine, theirs = optimiser(made.parameters()), optimiser(one.parameters())
    for step in range(STEPS):
        for steps in (mine, theirs):
            steps.zero_grad()
        for rank in range(ranks.count):
            (loss(one(_batch(ranks, rank, step))) / ranks.count).backward()
        loss(made(_batch(ranks, ranks.index, step))).backward()
        for what in ("gradient", "parameter"):
            for number, (found, want) in enumerate(zip(made.parameters(), one.parameters())):
                sharded: Any = found.grad if what == "gradient" else found
                whole = want.grad if what == "gradient" else want
                at = f"step {step}, {what} {number}"
                text = (
                    "a gradient or parameter of sharded training differs from training in "
                    "one process on the joined batch"
                )
                full = sharded.full_tensor()
                assert whole is not None
                context.assert_close(full, whole, text, at, rtol=RTOL, atol=ATOL)
            if what == "gradient":
                for steps in (mine, theirs):
                    steps.step()


@cases("distributed.sharded", over={"fsdp_blocks": ("blocks",)}, ranks=2)
@cases(
    "distributed.sharded",
    over={"fsdp_checkpointed": ("checkpointed",), "fsdp_tied": ("tied",)},
    ranks=2,
    more=True,
)
@cases(
    "distributed.sharded",
    over={"fsdp_blocks": ("blocks",), "fsdp_tied": ("tied",)},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def shards(context: CaseContext, name: str, count: int = 2) -> None:
    """fully_shard shards a network whose parameters have odd sizes, which is then trained for three steps, also with
    activation checkpointing and with tied weights. Gradients and parameters equal those of training in one process."""
    context.pooled(_shards, name, ranks=count)


# -- a pipeline


def _pipelines(context: CaseContext, schedule: str) -> None:
    from torch.distributed import pipelining

    ranks = join(context)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(13)
        stages = [nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 5))]
    generator = torch.Generator().manual_seed(17)
    x = torch.randn(8, 6, generator=generator)
    target = torch.randn(8, 5, generator=generator)
    whole = nn.Sequential(*copy.deepcopy(stages)).to(ranks.device)
    parts = zip(ranks.put(x).chunk(4), ranks.put(target).chunk(4))
    losses = [nn.functional.mse_loss(whole(a), b) for a, b in parts]
    (torch.stack(losses).sum() / len(losses)).backward()

    mine = stages[ranks.index].to(ranks.device)
    stage = pipelining.PipelineStage(mine, ranks.index, 2, ranks.device)
    runs = getattr(pipelining, schedule)(stage, 4, loss_fn=nn.functional.mse_loss)
    found: list[Tensor] = []
    if ranks.index == 0:
        runs.step(ranks.put(x))
    else:
        out = runs.step(target=ranks.put(target), losses=found)
        text = "the output of a pipeline differs from that of one process"
        context.assert_close(out, whole(ranks.put(x)), text, rtol=RTOL, atol=ATOL)
        for one, want in zip(found, losses):
            text = "a loss of a pipeline differs from that of one process"
            context.assert_close(one, want, text, rtol=RTOL, atol=ATOL)
    for parameter, want_parameter in zip(mine.parameters(), whole[ranks.index].parameters()):
        assert parameter.grad is not None
        assert want_parameter.grad is not None
        text = "a gradient of a pipeline differs from that of one process"
        context.assert_close(parameter.grad, want_parameter.grad, text, rtol=RTOL, atol=ATOL)


@cases("distributed.sharded", over={"pipeline": ("ScheduleGPipe",)}, ranks=2)
@cases("distributed.sharded", over={"pipeline_1f1b": ("Schedule1F1B",)}, ranks=2, more=True)
def pipelines(context: CaseContext, schedule: str) -> None:
    """A pipeline of two stages on two ranks processes four batches. Outputs, losses and gradients equal those of one
    process."""
    context.pooled(_pipelines, schedule, ranks=2)


# -- checkpoints


def _saves(context: CaseContext, folder: str) -> None:
    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
    from torch.distributed.tensor import DTensor

    ranks = join(context)
    mesh, whole = mesh_of(ranks), torch.arange(35.0).reshape(7, 5)

    def tensors(values: Tensor, source: str) -> dict[str, Any]:
        made = {}
        for view in VIEWS:
            mine = part_of(ranks, values, source)
            local = lay(ranks, mine, view)
            made[view] = DTensor.from_local(
                local,
                mesh,
                [placement(source)],
                run_check=False,
                shape=values.shape,
                stride=values.stride(),
            )
        return made

    state_dict_saver.save(tensors(whole, "shard_0"), checkpoint_id=folder)
    for target in ("shard_0", "shard_1"):
        loaded = tensors(torch.zeros_like(whole), target)
        state_dict_loader.load(loaded, checkpoint_id=folder)
        for view, found in loaded.items():
            text = "the values of a distributed tensor changed when it was saved and loaded"
            at = f"{view} parts, loaded as {target}"
            context.equal(found.full_tensor(), whole, text, at)


@cases("distributed.sharded", ranks=2)
def checkpoint(context: CaseContext) -> None:
    """Distributed tensors whose local parts are views are saved, and loaded with the same and with another placement.
    The loaded values equal those that were saved."""
    with tempfile.TemporaryDirectory(prefix="conform-") as folder:
        context.pooled(_saves, folder, ranks=2)
