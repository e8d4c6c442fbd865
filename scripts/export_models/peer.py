"""PyTorch's side of scripts/exports: training steps, and how far others may be from them."""
import copy
from dataclasses import dataclass

import torch

STARTS = 5  # of PyTorch in f32


@dataclass
class Curve:
    losses: list
    norms: list        # of all gradients together, in each step
    validation: float  # loss of another batch in evaluation mode, at the end; or None

    def error(self, exact):
        """The largest difference of a number, relative to that of `exact`, or to a hundredth of its kind's largest."""
        def relative(ours, theirs):
            a, b = (torch.tensor(numbers, dtype=torch.float64) for numbers in (ours, theirs))
            return ((a - b).abs() / b.abs().clamp(min=0.01 * b.abs().max().item() + 1e-30)).max().item()  # NaN for a NaN
        out = [relative(self.losses, exact.losses), relative(self.norms, exact.norms)]
        if exact.validation is not None:
            out.append(relative([self.validation], [exact.validation]))
        return torch.tensor(out).max().item()


def loss_of(output):
    """The output itself, or the single number among several."""
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output
    return next(v for v in values if v.dim() == 0 and v.is_floating_point())


def step(module, args):
    """The loss, the parameters that learn, with their gradients, and the norm of all of these."""
    loss = loss_of(module(*args))
    loss.backward()
    learning = [p for p in module.parameters() if p.requires_grad and p.grad is not None]
    return loss.item(), torch.sqrt(sum(p.grad.double().square().sum() for p in learning)).item()


def train(module, batches, steps, lr, validates, dtype=torch.float32, seed=1):
    """SGD with momentum on the first batch; the second is for the validation. The module stays as it is."""
    module = copy.deepcopy(module).to(dtype).train()
    args = [tuple(t.to(dtype) if t.is_floating_point() else t for t in b.values()) for b in batches]
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    losses, norms = [], []
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        loss, norm = step(module, args[0])
        losses.append(loss)
        norms.append(norm)
        optimizer.step()
    validation = None
    if validates:
        with torch.no_grad():
            validation = loss_of(module.eval()(*args[1])).item()
    return Curve(losses, norms, validation)


def rate_for(module, batch):
    """A learning rate by which the first step takes a hundredth from the loss, if that were a plane."""
    loss, norm = step(copy.deepcopy(module).train(), batch.values())
    return 0.01 * abs(loss) / norm**2


def draws(module, batch):
    """Whether the module's loss or its gradients depend on random numbers."""
    one, other = (train(module, [batch], 1, 0.0, False, seed=seed) for seed in (1, 2))
    return one != other


def shifted(tensor, generator):
    """One unit in the last place larger or smaller, except zeros."""
    sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return torch.nextafter(tensor, tensor + sign * tensor.abs())


def shifted_batch(batch, seed):
    """Whole numbers stay: they are labels and masks, and a probability may not be above 1."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.where(t == t.round(), t, shifted(t, generator)) if t.dtype == torch.float32 else t
            for n, t in batch.items()}


def shifted_module(module, seed):
    moved, generator = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    for p in moved.parameters():
        if p.dtype == torch.float32:
            p.data = shifted(p.data, generator)
    return moved


class Reference:
    """What PyTorch computes in f64 (`exact`; in f32, if the model says float32 somewhere), and how far its own f32 is
    from that (`noise`): the largest error of five starts one unit in the last place apart."""

    def __init__(self, module, batches, steps, lr, validates):
        curves = [train(module, batches, steps, lr, validates)]
        self.exact = curves[0]
        try:
            torch.set_default_dtype(torch.float64)
            self.exact = train(module, batches, steps, lr, validates, torch.float64)
        except RuntimeError:
            pass
        finally:
            torch.set_default_dtype(torch.float32)
        for seed in range(1, STARTS):
            moved = [shifted_batch(b, seed) for b in batches]
            curves.append(train(shifted_module(module, seed), moved, steps, lr, validates))
        self.noise = max(curve.error(self.exact) for curve in curves)
