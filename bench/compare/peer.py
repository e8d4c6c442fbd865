"""PyTorch's side of a comparison: the same model with the same weights, batch, loss and optimizer, step after step.

Run by bench/compare/compare with the Python of SHARDRUN_PEER_PYTHON. `--family` names the file next to this one that has
`build(settings, weights, data)`: the module, its loss as a function of module and data, and the data as the loss takes it. A
line of JSON a step goes to `--metrics`; the first one carries versions and the number of parameters too.
"""
import argparse
import contextlib
import importlib
import json


def options_of(about):
    """The parser of what every peer is told of its training."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", required=True, choices=["gpt", "wide_resnet", "gat"])
    parser.add_argument("--model", required=True, help="the ONNX file, for its weights")
    parser.add_argument("--data", required=True, help="an archive with one batch, as train --data npz: takes it")
    parser.add_argument("--settings", default="{}", help="of the family, as JSON")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--optimizer", choices=["adamw", "adam", "sgd"], default="adamw")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--weight-decay", type=float, default=0)
    parser.add_argument("--decay-all", action="store_true")
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--clip", type=float, default=0)
    parser.add_argument("--metrics", help="where the lines go")
    parser.add_argument("--rates", action="store_true", help="print this machine's measured ceilings instead")
    return parser


def parse():
    parser = options_of(__doc__)
    parser.add_argument("--mode", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def weights_of(path):
    """{name: array} of the floating initialisers."""
    import onnx
    from onnx import numpy_helper
    graph = onnx.load(path).graph
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}


def load(module, weights, rename=lambda name: name, transposed=lambda name: False):
    """Every parameter of `module` gets the file's weight of its name; one that is not there is an error."""
    import torch
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            value = torch.tensor(weights[rename(name)])
            parameter.copy_(value.T if transposed(name) else value.reshape(parameter.shape))


def load_data(path, device="cpu"):
    import numpy
    import torch
    return {name: torch.from_numpy(value).to(device) for name, value in numpy.load(path).items()}


def optimizer_of(torch, module, options):
    """The fused kind, the fastest one; SGD of DTensors, which has none, by lists of tensors. Decay is on tensors of two or
    more dims alone, unless --decay-all. A group has DTensors or others, for one fused call takes no mixture."""
    groups = {}
    for parameter in module.parameters():
        decayed = options.decay_all or parameter.dim() > 1
        groups.setdefault((decayed, type(parameter.data)), []).append(parameter)
    groups = [{"params": p, "weight_decay": options.weight_decay if decayed else 0.0} for (decayed, _), p in groups.items()]
    if options.optimizer == "sgd":
        how = {"foreach": True} if any(hasattr(p, "full_tensor") for p in module.parameters()) else {"fused": True}
        return torch.optim.SGD(groups, lr=options.lr, momentum=0.9, nesterov=options.nesterov, **how)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=options.lr, fused=True)


def rates(torch, dtype, together=lambda: None):
    """FLOP/s of a square product and bytes/s of a sum of two large arrays into a third, the best of several. `together` is
    called before each."""
    import time

    def best(f, repeats):
        f()
        times = []
        for _ in range(repeats):
            together()
            start = time.perf_counter()
            f()
            times.append(time.perf_counter() - start)
        return min(times)

    n, m = 2048, 1 << 26
    a, b = (torch.randn(n, n, dtype=dtype) for _ in range(2))
    x, y, z = (torch.ones(m) for _ in range(3))
    return {"flops": 2 * n**3 / best(lambda: a @ b, 10), "bandwidth": 12 * m / best(lambda: torch.add(x, y, out=z), 5)}


def main():
    options = parse()
    import torch
    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    if options.rates:
        print(json.dumps(rates(torch, dtype)))
        return
    family = importlib.import_module(options.family)
    settings = json.loads(options.settings)
    torch.backends.cudnn.benchmark = True
    module, loss_of, data = family.build(settings, weights_of(options.model), load_data(options.data, options.device))
    module.to(options.device).train()
    compute = torch.compile(loss_of) if options.mode == "compiled" else loss_of
    optimizer = optimizer_of(torch, module, options)
    narrow = torch.autocast(options.device, torch.bfloat16) if options.dtype == "bf16" else contextlib.nullcontext()
    libraries = f"oneDNN {torch.backends.mkldnn.is_available()}" if options.device == "cpu" else \
        f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}, " \
        f"flash attention {torch.backends.cuda.flash_sdp_enabled()}"
    line = {"versions": f"PyTorch {torch.__version__}{family.version()}, {libraries}",
            "parameters": sum(p.numel() for p in module.parameters())}
    with open(options.metrics, "w") as metrics:
        while True:
            with narrow:
                loss = compute(module, data)
            loss.backward()
            if options.clip > 0:
                torch.nn.utils.clip_grad_norm_(module.parameters(), options.clip, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if line and options.device == "cuda":
                line["bytes"] = torch.cuda.max_memory_allocated()
            print(json.dumps({**line, "loss": loss.item()}), file=metrics, flush=True)
            line = {}


if __name__ == "__main__":
    main()
