"""PyTorch's side of scripts/exports: training steps, and how far apart two of them are."""
import copy
from dataclasses import dataclass

import torch


@dataclass
class Curve:
    losses: list
    norms: list        # of all gradients together, in each step
    validation: float  # loss of another batch in evaluation mode, at the end; or None


def loss_of(output):
    """The output itself, or the single number among several."""
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output
    return next(v for v in values if v.dim() == 0 and v.is_floating_point())


def train(module, batches, steps, lr, validates, dtype=torch.float32):
    """SGD with momentum on the first batch; the second is for the validation. The module stays as it is."""
    module = copy.deepcopy(module).to(dtype).train()
    args = [tuple(t.to(dtype) if t.is_floating_point() else t for t in b.values()) for b in batches]
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    losses, norms = [], []
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module(*args[0]))
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.sqrt(sum(p.grad.double().square().sum() for p in parameters if p.grad is not None)).item())
        optimizer.step()
    validation = None
    if validates:
        with torch.no_grad():
            validation = loss_of(module.eval()(*args[1])).item()
    return Curve(losses, norms, validation)


def relative(ours, theirs):
    """The largest difference, relative to each number of `theirs`, or to a hundredth of the largest."""
    floor = 0.01 * max(abs(t) for t in theirs)
    return max(abs(o - t) / max(abs(t), floor, 1e-30) for o, t in zip(ours, theirs, strict=True))


def difference(ours, theirs):
    out = max(relative(ours.losses, theirs.losses), relative(ours.norms, theirs.norms))
    if theirs.validation is not None:
        out = max(out, relative([ours.validation], [theirs.validation]))
    return out


def noise_of(module, batches, steps, lr, validates, reference):
    """The largest difference of PyTorch from itself: in f64 where the model can, and with weights that are one unit in
    the last place larger or smaller."""
    runs = []
    try:
        torch.set_default_dtype(torch.float64)
        runs.append(train(module, batches, steps, lr, validates, torch.float64))
    except RuntimeError:  # a model that says float32 somewhere
        pass
    finally:
        torch.set_default_dtype(torch.float32)
    for seed in range(4):
        moved, generator = copy.deepcopy(module), torch.Generator().manual_seed(seed)
        for p in moved.parameters():
            if p.is_floating_point():
                sign = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
                p.data = torch.nextafter(p.data, p.data + sign * (p.data.abs() + 1e-30))
        runs.append(train(moved, batches, steps, lr, validates))
    return max(difference(run, reference) for run in runs)
