"""PyTorch's side of a comparison on several ranks, over gloo: the same step in one of its own multi-process modes.

    ddp            DistributedDataParallel; gradients are reduced in the last micro-batch alone (no_sync)
    ddp-compiled   the same with the module through torch.compile
    fsdp2          fully_shard of each block: bf16 is gathered (f32 where there are batch norms), gradients are reduced in
                   f32. Parameters are gathered once a step, and gradients scattered once
    fsdp2-full     the same, but parameters are dropped after their block's passes, and gathered again: less memory
    tp             DTensor's tensor parallelism, Megatron's layout, with the loss of a cut vocabulary

Run by bench/compare/ranks with the Python of SHARDRUN_PEER_PYTHON. It starts `--ranks` processes of itself with one thread
each. Rank 0 writes a line of JSON a step to `--metrics`, as peer.py does, which also says what is the same in both: models,
weights, optimizers, and the loss, here the mean over ranks and micro-batches.
"""
import contextlib
import ctypes
import datetime
import gc
import importlib
import json
import os
import signal
import subprocess
import sys

from peer import load_data, optimizer_of, options_of, rates, weights_of

MODES = ["ddp", "ddp-compiled", "fsdp2", "fsdp2-full", "tp"]


def parse():
    parser = options_of(__doc__)
    parser.add_argument("--mode", choices=MODES, default="ddp")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--meeting", help="a file that is not there yet, where the ranks find each other")
    parser.add_argument("--bucket-mb", type=float, default=25, help="ddp: of a bucket")
    return parser.parse_args()


def start_ranks(options):
    """Runs all ranks; where one ends, all do. Returns its status."""
    ranks = [subprocess.Popen([sys.executable, "-B", *sys.argv], env={**os.environ, "RANK": str(rank)})
             for rank in range(options.ranks)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        if options.rates:
            return max(rank.wait() for rank in ranks)
        return os.waitstatus_to_exitcode(os.wait()[1])
    finally:
        for rank in ranks:
            rank.kill()


class Ddp:
    """Each rank takes its shard of a micro-batch."""
    cuts_batch = True

    def __init__(self, torch, family, module, options):
        if options.mode == "ddp-compiled":
            module.compile()
        self.module = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True, forward_sync_buffers=False,
                                                                bucket_cap_mb=options.bucket_mb)

    def micro_batch(self, last):
        return contextlib.nullcontext() if last else self.module.no_sync()


class Fsdp2:
    cuts_batch = True

    def __init__(self, torch, family, module, options):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        self.full = options.mode == "fsdp2-full"
        module.to(memory_format=torch.contiguous_format)  # it takes no other parameters
        policy = {"mesh": init_device_mesh("cpu", (options.ranks,)), "reshard_after_forward": self.full}
        norms = any(isinstance(part, torch.nn.BatchNorm2d) for part in module.modules())
        if options.dtype == "bf16" and not norms:  # a batch norm takes no bf16 scale with f32 statistics
            policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in family.blocks(module):
            fully_shard(block, **policy)
        self.module = fully_shard(module, **policy)

    def micro_batch(self, last):
        self.module.set_requires_gradient_sync(last)
        self.module.set_reshard_after_backward(last or self.full)
        return contextlib.nullcontext()


class TensorParallel:
    """Every rank takes the whole micro-batch."""
    cuts_batch = False

    def __init__(self, torch, family, module, options):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import loss_parallel
        if not hasattr(family, "tensor_parallel"):
            raise SystemExit(f"{options.family} has no layout for tensor parallelism")
        family.tensor_parallel(module, init_device_mesh("cpu", (options.ranks,)))
        self.module, self.loss_parallel = module, loss_parallel

    def micro_batch(self, last):
        return self.loss_parallel()


def scheme_of(mode):
    return Ddp if mode.startswith("ddp") else Fsdp2 if mode.startswith("fsdp2") else TensorParallel


def whole(tensor):
    """Of a DTensor: what it stands for."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def clip(torch, parameters, limit):
    """The gradients' norm over all ranks, to at most `limit`. DTensors and others are of two kinds to the fused loops."""
    kinds = [[p.grad for p in parameters if hasattr(p.grad, "full_tensor") == cut] for cut in (False, True)]
    norms = [whole(torch.nn.utils.get_total_norm(grads, foreach=True)) for grads in kinds if grads]
    factor = limit / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)
    if factor < 1:
        for grads in filter(None, kinds):
            torch._foreach_mul_(grads, factor.item())


def micro_batches(data, count, ranks, rank):
    """Of a step's samples this rank's, micro-batch by micro-batch; each is of the same samples on any number of ranks."""
    def part(tensor, i):
        each = tensor.chunk(count)[i]
        return each.chunk(ranks)[rank] if ranks > 1 else each
    return [{name: part(tensor, i) for name, tensor in data.items()} for i in range(count)]


def train(torch, options, rank):
    family = importlib.import_module(options.family)
    module, loss_of, data = family.build(json.loads(options.settings), weights_of(options.model), load_data(options.data))
    line = {"versions": f"PyTorch {torch.__version__}, {options.mode} over gloo",
            "parameters": sum(p.numel() for p in module.parameters())}
    module.train()
    scheme = scheme_of(options.mode)(torch, family, module, options)
    data = micro_batches(data, options.micro_batches, options.ranks if scheme.cuts_batch else 1, rank)
    optimizer = optimizer_of(torch, module, options)
    parameters = list(module.parameters())
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what reading the weights took is not training's
    narrow = torch.autocast("cpu", torch.bfloat16) if options.dtype == "bf16" else contextlib.nullcontext()
    with open(options.metrics, "w") if rank == 0 else contextlib.nullcontext() as metrics:
        while True:
            total = torch.zeros(())
            for i, batch in enumerate(data):
                with scheme.micro_batch(i + 1 == len(data)):
                    with narrow:
                        loss = loss_of(scheme.module, batch) / len(data)
                    loss.backward()
                total += whole(loss.detach())
            if options.clip > 0:
                clip(torch, parameters, options.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if scheme.cuts_batch:
                torch.distributed.all_reduce(total)
                total /= options.ranks
            if rank == 0:
                print(json.dumps({**line, "loss": total.item()}), file=metrics, flush=True)
                line = {}


def main():
    options = parse()
    if "RANK" not in os.environ:
        return start_ranks(options)
    rank = int(os.environ["RANK"])
    import torch
    from torch import distributed
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # It is stopped in others' turns, which may be long.
    distributed.init_process_group("gloo", init_method=f"file://{options.meeting}", rank=rank, world_size=options.ranks,
                                   timeout=datetime.timedelta(hours=10))
    if options.rates:
        found = rates(torch, torch.bfloat16 if options.dtype == "bf16" else torch.float32, distributed.barrier)
        every = [None] * options.ranks
        distributed.all_gather_object(every, found)
        if rank == 0:
            print(json.dumps(every))
        distributed.barrier()
        return 0
    train(torch, options, rank)


if __name__ == "__main__":
    sys.exit(main())
