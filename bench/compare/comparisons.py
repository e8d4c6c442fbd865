"""What is compared: models, batches, recipes, and what both sides have to agree on."""
import array
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# A malloc that keeps memory between steps, and backs it by huge pages.
KEPT = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
                          ":glibc.malloc.hugetlb=1"}


# ---- batches: archives of .npy files, written without numpy

def npy(code, shape, values):
    """`code` as in numpy: <f4, <i8, |b1."""
    header = f"{{'descr': '{code}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    kind = {"<f4": "f", "<i8": "q", "|b1": "b"}[code]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + array.array(kind, values).tobytes()


def write_npz(path, arrays):
    with zipfile.ZipFile(path, "w") as archive:
        for name, (code, shape, values) in arrays.items():
            archive.writestr(name + ".npy", npy(code, shape, values))


def tokens(path, settings, batch):
    rng, shape = random.Random(0), (batch, settings["context"])
    draw = lambda: ("<i8", shape, (rng.randrange(settings["vocab"]) for _ in range(shape[0] * shape[1])))
    write_npz(path, {"tokens": draw(), "target": draw()})


def normals(rng, count):
    """Random numbers; of many, the first million over and over."""
    some = array.array("f", (rng.gauss(0, 1) for _ in range(min(count, 1 << 20))))
    return (some * (count // len(some) + 1))[:count]


def images(path, settings, batch):
    rng, size = random.Random(0), settings["image"]
    write_npz(path, {"images": ("<f4", (batch, 3, size, size), normals(rng, batch * 3 * size * size)),
                     "target": ("<i8", (batch,), (rng.randrange(settings["classes"]) for _ in range(batch)))})


def matrix_graph(path, settings, _):
    """Each node with itself and half of the others."""
    rng, n = random.Random(0), settings["nodes"]
    width = settings["features"]
    write_npz(path, {
        "features": ("<f4", (n, width), normals(rng, n * width)),
        "adjacency": ("|b1", (n, n), (int(i == j or rng.random() < 0.5) for i in range(n) for j in range(n))),
        "target": ("<i8", (n,), (rng.randrange(settings["classes"]) for _ in range(n)))})


def cora(path, settings, _):
    """Cora's sizes: 2,708 papers with 1,433 words, of which a paper has 18; 13,264 edges, loops among them."""
    rng, n, width = random.Random(0), settings["nodes"], settings["features"]
    features = array.array("f", bytes(4 * n * width))
    for node in range(n):
        for word in rng.sample(range(width), 18):
            features[node * width + word] = 1
    edges = [(node, node) for node in range(n)]
    while len(edges) < settings["edges"]:
        a, b = rng.randrange(n), rng.randrange(n)
        edges += [(a, b), (b, a)]
    masks = {"train_mask": range(140), "val_mask": range(140, 640), "test_mask": range(n - 1000, n)}
    write_npz(path, {
        "features": ("<f4", (n, width), features),
        "edge_index": ("<i8", (2, len(edges)), (edge[side] for side in (0, 1) for edge in edges)),
        "labels": ("<i8", (n,), (rng.randrange(settings["classes"]) for _ in range(n))),
        **{name: ("|b1", (n,), [int(node in rows) for node in range(n)]) for name, rows in masks.items()}})


# ---- what is compared

class Comparison:
    """`wanted`: {eager or compiled: ratio}. `tolerance` of the losses: relative; None where dropout differs.
    `wanted_rate`: of ours, items a second."""

    def __init__(self, name, family, model, settings, data, batch, dtype, recipe, wanted, tolerance, wanted_rate=None):
        self.name, self.family, self.model, self.settings, self.data = name, family, model, settings, data
        self.batch, self.dtype, self.recipe, self.wanted, self.tolerance = batch, dtype, recipe, wanted, tolerance
        self.wanted_rate = wanted_rate

    def items(self):
        """What a step takes, and how many."""
        return {"gpt": lambda: ("tokens", self.batch * self.settings["context"]),
                "wide_resnet": lambda: ("images", self.batch),
                "gat": lambda: ("nodes", self.settings["nodes"])}[self.family]()


def gpt(context, batch, dtype, wanted):
    settings = {"layers": 12, "heads": 12, "context": context, "vocab": 50257}
    return Comparison(f"gpt-{batch}x{context}-{dtype}", "gpt", ["gpt", "--preset", "gpt2-124m", "--context", context],
                      settings, tokens, batch, dtype,
                      ["--optimizer", "adamw", "--lr", "1e-4", "--weight-decay", "0.1", "--clip", "1"], wanted,
                      1e-2 if dtype == "bf16" else 1e-3)


def wide_resnet(name, model, settings, batch, dtype, lr, wanted):
    """`lr` is so small that a step changes the loss by 1 to 3 %: then the losses show whether the gradients agree. At
    first WRN-50-2's have a norm of 320, and rounding alone turns enough of its relus over to move them by 2 % (ours) to
    4 % (PyTorch's, channels last) from those in f64; a step of 1e-4 makes that 2e-3 of the next loss."""
    return Comparison(f"{name}-{dtype}", "wide_resnet", ["wide-resnet", *model, "--recipe", "--loss cross-entropy"],
                      settings, images, batch, dtype,
                      ["--optimizer", "sgd", "--lr", lr, "--nesterov", "--weight-decay", "5e-4", "--decay-all"],
                      wanted, 1e-2 if dtype == "bf16" else 1e-3)


def comparisons():
    out = [gpt(64, 4, "bf16", {"eager": 2.0, "compiled": 1.3}), gpt(64, 4, "f32", {"eager": 1.3}),
           gpt(1024, 1, "bf16", {"eager": 1.5, "compiled": 1.2})]
    for dtype, ratio in (("bf16", 1.25), ("f32", 1.05)):
        out.append(wide_resnet("wrn-50-2", ["--preset", "wrn-50-2"],
                               {"family": "imagenet", "width": 128, "image": 224, "classes": 1000}, 8, dtype,
                               "1e-6", {"eager": ratio}))
        out.append(wide_resnet("wrn-28-10", ["--preset", "wrn-28-10"],
                               {"family": "cifar", "layers": 28, "width": 10, "image": 32, "classes": 10}, 64, dtype,
                               "1e-3", {"eager": ratio}))
    width = {"features": 2048, "hidden": 2048, "classes": 2048, "heads": 1}
    for dtype, tolerance in (("f32", 1e-3), ("bf16", 1e-2)):
        out.append(Comparison(f"gat-dense-{dtype}", "gat",
                              ["gat", "--dense", "--layers", 1, "--nodes", 1024, "--output-heads", 1,
                               *(x for name, size in width.items() for x in (f"--{name}", size))],
                              {"dense": True, "nodes": 1024, **width}, matrix_graph, None, dtype,
                              ["--optimizer", "adamw", "--lr", "1e-4", "--clip", "0"], {"eager": 1.5}, tolerance))
    for name, dropout in (("gat-cora", 0.6), ("gat-cora-plain", 0.0)):
        settings = {"dense": False, "nodes": 2708, "edges": 13264, "features": 1433, "hidden": 8, "classes": 7,
                    "heads": 8, "dropout": dropout}
        out.append(Comparison(name, "gat", ["gat", "--preset", "cora", "--dropout", dropout, "--attention-dropout", dropout,
                                            "--recipe", "--loss cross-entropy --normalise rows"],
                              settings, cora, None, "f32",
                              ["--optimizer", "adam", "--lr", "0.005", "--weight-decay", "5e-4", "--decay-all"],
                              {"eager": 3.0} if dropout else {"eager": None}, None if dropout else 1e-3))
    return out


def gpu_comparisons():
    """What a GPU is for: contexts of 1024, images of 224 x 224, a dense graph of 4096 x 12288."""
    wanted, out = {"eager": None, "compiled": 1.15}, []
    for preset, layers, heads, batch, rate in (("124m", 12, 12, 32, 480e3), ("1558m", 48, 25, 12, None)):
        settings = {"layers": layers, "heads": heads, "context": 1024, "vocab": 50257}
        out.append(Comparison(f"gpt-{preset}", "gpt", ["gpt", "--preset", f"gpt2-{preset}", "--context", 1024], settings,
                              tokens, batch, "bf16",
                              ["--optimizer", "adamw", "--lr", "1e-4", "--weight-decay", "0.1", "--clip", "1"], wanted, 1e-2, rate))
    out.append(wide_resnet("wrn-50-2", ["--preset", "wrn-50-2"],
                           {"family": "imagenet", "width": 128, "image": 224, "classes": 1000}, 256, "bf16", "1e-6", wanted))
    width = {"features": 12288, "hidden": 12288, "classes": 12288, "heads": 1}
    out.append(Comparison("gat-dense", "gat",
                          ["gat", "--dense", "--layers", 1, "--nodes", 4096, "--output-heads", 1,
                           *(x for name, size in width.items() for x in (f"--{name}", size))],
                          {"dense": True, "nodes": 4096, **width}, matrix_graph, None, "bf16",
                          ["--optimizer", "adamw", "--lr", "1e-4", "--clip", "0"], wanted, 1e-2))
    return out


def write_inputs(shardrun, comparison, folder, micro_batches=1, cora_file=None):
    """The model's file, and an archive with all samples of a step."""
    model, data = folder / "model.onnx", folder / "data.npz"
    subprocess.run([shardrun, "model", *map(str, comparison.model), "-o", model], check=True)
    if comparison.data is cora and cora_file:
        return str(model), str(pathlib.Path(cora_file).resolve())
    comparison.data(data, comparison.settings, comparison.batch * micro_batches if comparison.batch else None)
    return str(model), str(data)


def rank_comparisons():
    """What two ranks are compared by, with 1 and 4 micro-batches: pairs of a Comparison and their number. `wanted` is by mode
    of PyTorch, and None where nothing is."""
    out = []
    for count in (1, 4):
        one = count == 1
        out += [(gpt(64, 4, "bf16", {"ddp": 2.45 if one else None, "fsdp2": 5.0 if one else None, "tp": None}), count),
                (gpt(64, 16, "bf16", {"ddp": 1.64 if one else None, "fsdp2": 2.3 if one else None, "tp": None}), count),
                (wide_resnet("wrn-28-10", ["--preset", "wrn-28-10"],
                             {"family": "cifar", "layers": 28, "width": 10, "image": 32, "classes": 10}, 16, "bf16", "1e-3",
                             {"ddp": None, "fsdp2": None}), count)]
    for comparison, count in out:
        if comparison.family == "wide_resnet":  # PyTorch's ranks normalise by their own samples, ours by all
            comparison.tolerance = 0.1
        comparison.name += f"-k{count}"
    return out


# ---- what both sides have to agree on

def parameters(log):
    """Of shardrun: the elements of what its table of parameters calls trained."""
    shapes = re.findall(r"^\S+ +f32\[([\d, ]*)\] +yes ", log, re.MULTILINE)
    return sum(product(map(int, filter(None, shape.split(", ")))) for shape in shapes)


def product(numbers):
    out = 1
    for number in numbers:
        out *= number
    return out


def check_same(comparison, own, theirs, our_losses, their_losses, say):
    """Numbers of parameters, and losses of the first steps."""
    say(f"  parameters: ours {own}, PyTorch {theirs}")
    if own != theirs:
        raise SystemExit(f"compare: {comparison.name}: the models differ: {own} parameters and {theirs}")
    say("  losses: ours " + " ".join(f"{x:.4f}" for x in our_losses) + "; PyTorch " +
        " ".join(f"{x:.4f}" for x in their_losses))
    if comparison.tolerance is None:
        return
    for step, (a, b) in enumerate(zip(our_losses, their_losses)):
        if abs(a - b) > comparison.tolerance * abs(b):
            raise SystemExit(f"compare: {comparison.name}: the losses of step {step + 1} differ: {a} and {b}, "
                             f"wanted within {comparison.tolerance:g}")


def verdict(got, wanted):
    return "" if wanted is None else f", wanted {wanted:g}: {'reached' if got >= wanted else 'MISSED'}"


def find_peer(shardrun, needed=True):
    """The Python that has PyTorch."""
    peer = os.environ.get("SHARDRUN_PEER_PYTHON") or sys.executable
    try:
        probe = subprocess.run([peer, "-c", "import torch, numpy, onnx"], capture_output=True, text=True, check=False)
        why = probe.stderr.strip().splitlines()[-1:] if probe.returncode != 0 else None
    except OSError as e:
        why = [str(e)]
    if why is not None and needed:
        sys.exit(f"compare: {peer} cannot import torch, numpy and onnx ({''.join(why)}); set SHARDRUN_PEER_PYTHON to a "
                 "Python that can")
    if not os.access(shardrun, os.X_OK):
        sys.exit(f"compare: {shardrun} is not a program; build it, or name it with --shardrun")
    return peer


def processor():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown processor")
