"""Calls of mx.image that run in MXNet 1.9.1 and here alike: name -> function of the package.

Each gives an array or a list of arrays. The caller seeds `random` and `numpy.random` before.
"""

import os

import numpy as np

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "images")
FILES = sorted(n for n in os.listdir(FOLDER) if n.split(".")[-1] in ("jpg", "png", "bmp", "tif"))
BOXES = np.array([[0, 0.1, 0.2, 0.6, 0.7], [1, 0.3, 0.3, 0.9, 0.8], [2, 0.05, 0.6, 0.2, 0.9]])


def pixels(height=16, width=22, channels=3):
    """A smooth picture of levels 0 to 255."""
    y, x, c = np.mgrid[0:height, 0:width, 0:channels].astype(np.float64)
    waves = np.sin(x / 5 + c) + np.cos(y / 4 - c) + np.sin((x + 2 * y) / 9)
    return np.round((waves + 3) / 6 * 255)


def image(mx, dtype="float32", **size):
    return mx.nd.array(pixels(**size), dtype=dtype)


def decoding(mx, name, flag, to_rgb):
    with open(os.path.join(FOLDER, name), "rb") as file:
        return mx.image.imdecode(file.read(), flag=flag, to_rgb=to_rgb)


def placed(result):
    return [result[0], np.array(result[1])]


def augmented(make, repeats=4, dtype="float32", **size):
    """Several calls of one augmenter, so that draws add up."""

    def run(mx):
        augmenter = make(mx.image)
        return [augmenter(image(mx, dtype, **size)) for _ in range(repeats)]

    return run


def boxed(make, repeats=6):
    """Several calls of one augmenter of images with boxes."""

    def run(mx):
        augmenter = make(mx.image)
        results = []
        for _ in range(repeats):  # MXNet changes its arguments
            results += augmenter(image(mx, "uint8", height=30, width=40), BOXES.copy())
        return results

    return run


def chain(make, dtype="uint8"):
    """A whole list of augmenters on several images."""

    def run(mx):
        augmenters = make(mx.image)
        results = []
        for height, width in ((40, 50), (23, 60)):
            x = image(mx, dtype, height=height, width=width)
            for augmenter in augmenters:
                x = augmenter(x)
            results.append(x)
        return results

    return run


EIGVAL = np.array([55.46, 4.794, 1.148])
EIGVEC = np.array([[-0.5675, 0.7192, 0.4009], [-0.58, -0.0045, -0.814], [-0.58, -0.69, 0.42]])
BASE = {
    **{
        f"resize {dtype} {h}x{w} {interp}": lambda mx, d=dtype, h=h, w=w, i=interp: (
            mx.image.imresize(image(mx, d), w, h, i)
        )
        for dtype in ("uint8", "float32")
        for h, w in ((11, 13), (31, 41), (25, 20))
        for interp in range(5)
    },
    "grey resize": lambda mx: mx.image.imresize(image(mx, "uint8", channels=1), 9, 7, 1),
    "resize_short": lambda mx: mx.image.resize_short(image(mx, "uint8"), 12),
    "resize_short tall": lambda mx: mx.image.resize_short(
        image(mx, "uint8", height=37, width=21), 12, 9
    ),
    "resize_short up": lambda mx: mx.image.resize_short(image(mx, "uint8"), 33, 9),
    "resize_short random": lambda mx: [
        mx.image.resize_short(image(mx, "uint8"), 13, 10) for _ in range(6)
    ],
    "fixed_crop": lambda mx: mx.image.fixed_crop(image(mx, "uint8"), 3, 2, 11, 9),
    "fixed_crop sized": lambda mx: mx.image.fixed_crop(image(mx, "uint8"), 3, 2, 11, 9, (20, 8), 9),
    "center_crop": lambda mx: placed(mx.image.center_crop(image(mx, "uint8"), (11, 8))),
    "center_crop large": lambda mx: placed(mx.image.center_crop(image(mx, "uint8"), (50, 70))),
    "random_crop": lambda mx: placed(mx.image.random_crop(image(mx, "uint8"), (11, 8))),
    "random_crop large": lambda mx: placed(mx.image.random_crop(image(mx, "uint8"), (50, 70))),
    "random_size_crop": lambda mx: placed(
        mx.image.random_size_crop(image(mx, "uint8"), (12, 12), (0.1, 1.0), (0.75, 1.33))
    ),
    "random_size_crop number": lambda mx: placed(
        mx.image.random_size_crop(image(mx, "uint8"), (12, 12), 0.3, (0.5, 2))
    ),
    "random_size_crop fails": lambda mx: placed(
        mx.image.random_size_crop(image(mx, "uint8"), (12, 12), (4.0, 5.0), (0.75, 1.33))
    ),
    "scale_down": lambda mx: [
        np.array(mx.image.scale_down(a, b))
        for a, b in (((640, 480), (720, 120)), ((360, 1000), (480, 500)), ((9, 9), (9, 9)))
    ],
    "color_normalize": lambda mx: mx.image.color_normalize(
        image(mx), mx.nd.array([120.0, 110.0, 100.0]), mx.nd.array([50.0, 60.0, 70.0])
    ),
    "color_normalize mean": lambda mx: mx.image.color_normalize(image(mx), mx.nd.array([9.0])),
    **{
        f"border {kind}": lambda mx, k=kind: mx.image.copyMakeBorder(
            image(mx, "uint8"), 1, 2, 3, 4, type=k, value=7
        )
        for kind in range(5)
    },
    "border values": lambda mx: mx.image.copyMakeBorder(
        image(mx), 1, 2, 3, 4, type=0, values=(1.0, 2.0, 3.0)
    ),
}


def turned(angle, **zoom):
    return lambda mx: mx.image.imrotate(image(mx, channels=2).transpose((2, 0, 1)), angle, **zoom)


ROTATIONS = {
    **{f"rotate {angle}": turned(angle) for angle in (0, 10, -37.5, 90, 180, 250)},
    **{f"rotate in {angle}": turned(angle, zoom_in=True) for angle in (10, -37.5, 90)},
    **{f"rotate out {angle}": turned(angle, zoom_out=True) for angle in (10, -37.5, 90)},
    "rotate batch": lambda mx: mx.image.imrotate(
        mx.nd.stack(*[image(mx).transpose((2, 0, 1))] * 2), mx.nd.array([15.0, -80.0])
    ),
    "random_rotate": lambda mx: mx.image.random_rotate(
        mx.nd.stack(*[image(mx).transpose((2, 0, 1))] * 3), (-40, 40)
    ),
}
AUGMENTERS = {
    "ResizeAug": augmented(lambda i: i.ResizeAug(13), 1, "uint8"),
    "ForceResizeAug": augmented(lambda i: i.ForceResizeAug((13, 17), 9), 1, "uint8"),
    "RandomCropAug": augmented(lambda i: i.RandomCropAug((13, 7)), 4, "uint8"),
    "CenterCropAug": augmented(lambda i: i.CenterCropAug((13, 7)), 1, "uint8"),
    "RandomSizedCropAug": augmented(
        lambda i: i.RandomSizedCropAug((9, 9), (0.2, 1.0), (0.75, 1.33)), 6, "uint8"
    ),
    "BrightnessJitterAug": augmented(lambda i: i.BrightnessJitterAug(0.4)),
    "ContrastJitterAug": augmented(lambda i: i.ContrastJitterAug(0.4)),
    "SaturationJitterAug": augmented(lambda i: i.SaturationJitterAug(0.4)),
    "HueJitterAug": augmented(lambda i: i.HueJitterAug(0.4)),
    "ColorJitterAug": augmented(lambda i: i.ColorJitterAug(0.4, 0.3, 0.2)),
    "LightingAug": augmented(lambda i: i.LightingAug(0.3, EIGVAL, EIGVEC)),
    "ColorNormalizeAug": augmented(
        lambda i: i.ColorNormalizeAug(np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0])), 1
    ),
    "RandomGrayAug": augmented(lambda i: i.RandomGrayAug(0.5)),
    "HorizontalFlipAug": augmented(lambda i: i.HorizontalFlipAug(0.5), 5, "uint8"),
    "CastAug": augmented(lambda i: i.CastAug(), 1, "uint8"),
    "RandomOrderAug": augmented(
        lambda i: i.RandomOrderAug([i.HorizontalFlipAug(0.5), i.RandomCropAug((9, 9))]),
        5,
        "uint8",
    ),
    "SequentialAug": augmented(
        lambda i: i.SequentialAug([i.CastAug(), i.HorizontalFlipAug(0.5), i.HueJitterAug(0.1)]),
        4,
        "uint8",
    ),
    "CreateAugmenter plain": chain(lambda i: i.CreateAugmenter((3, 16, 16))),
    "CreateAugmenter": chain(
        lambda i: i.CreateAugmenter(
            (3, 14, 18), resize=20, rand_crop=True, rand_mirror=True, mean=True, std=True,
            brightness=0.1, contrast=0.2, saturation=0.3, hue=0.1, pca_noise=0.1, rand_gray=0.3,
            inter_method=1,
        )
    ),
    "CreateAugmenter sized": chain(
        lambda i: i.CreateAugmenter(
            (3, 14, 18), rand_crop=True, rand_resize=True, rand_mirror=True,
            mean=np.array([1.0, 2.0, 3.0]), inter_method=1,
        )
    ),
}  # fmt: skip
DETECTION = {
    "DetHorizontalFlipAug": boxed(lambda i: i.DetHorizontalFlipAug(0.5)),
    "DetRandomCropAug": boxed(lambda i: i.DetRandomCropAug(), 10),
    "DetRandomCropAug strict": boxed(
        lambda i: i.DetRandomCropAug(0.7, (0.5, 2.0), (0.1, 0.9), 0.5, 30), 10
    ),
    "DetRandomCropAug flat": boxed(lambda i: i.DetRandomCropAug(0.1, (2.0, 4.0), (0.2, 1.0)), 10),
    "DetRandomPadAug": boxed(lambda i: i.DetRandomPadAug(), 8),
    "DetRandomPadAug flat": boxed(
        lambda i: i.DetRandomPadAug((0.4, 3.0), (1.5, 4.0), 20, (9, 8, 7))
    ),
    "DetRandomSelectAug": boxed(
        lambda i: i.DetRandomSelectAug([i.DetHorizontalFlipAug(1.0), i.DetRandomPadAug()], 0.3), 8
    ),
    "DetBorrowAug": boxed(lambda i: i.DetBorrowAug(i.ForceResizeAug((20, 20))), 1),
    "CreateMultiRandCropAugmenter": boxed(
        lambda i: i.CreateMultiRandCropAugmenter(
            min_object_covered=[0.1, 0.5, 0.9], area_range=(0.1, 1.0), skip_prob=0.2
        ),
        10,
    ),
}


def dumped(value):
    """What `dumps` gives as bytes, names alike in both packages."""
    return np.frombuffer(repr(value).encode(), np.uint8)


DUMPS = {
    "dumps CreateAugmenter": lambda mx: dumped(
        [
            a.dumps()
            for a in mx.image.CreateAugmenter(
                (3, 10, 12), resize=15, rand_crop=True, rand_resize=True, rand_mirror=True,
                mean=True, std=True, brightness=0.1, contrast=0.1, saturation=0.1, hue=0.1,
                pca_noise=0.1, rand_gray=0.1,
            )
        ]
    ),
    "dumps CreateDetAugmenter": lambda mx: dumped(
        [
            a.dumps()
            for a in mx.image.CreateDetAugmenter(
                (3, 10, 12), resize=15, rand_crop=0.5, rand_pad=0.4, rand_mirror=True, mean=True,
                std=True, brightness=0.1, contrast=0.1, saturation=0.1, hue=0.1, pca_noise=0.1,
                rand_gray=0.1,
            )
        ]
    ),
}  # fmt: skip
DECODING = {
    f"decode {name} {flag} {int(rgb)}": lambda mx, n=name, f=flag, r=rgb: decoding(mx, n, f, r)
    for name in FILES
    for flag, rgb in ((1, True), (1, False), (0, True))
    if rgb or name in ("a.jpg", "a.png")
}
LISTED = ["a.png", "pal.png", "alpha.png", "la.png", "one.png", "g16.png", "a.bmp"]
SHAPE = (3, 6, 7)


def epochs(iterator, count=3):
    """Data, label and pad of every batch of some epochs, and how many batches each has."""
    found, lengths = [], []
    for _ in range(count):
        lengths.append(0)
        for batch in iterator:
            found += [batch.data[0], batch.label[0], np.array(batch.pad)]
            lengths[-1] += 1
        iterator.reset()
    return [*found, np.array(lengths)]


def listed(**options):
    entries = [[float(i), name] for i, name in enumerate(LISTED)]
    options = {"inter_method": 1, **options}
    return lambda mx: epochs(
        mx.image.ImageIter(3, SHAPE, imglist=entries, path_root=FOLDER, **options)
    )


def from_files(batch=3, index=True, **options):
    options = {"inter_method": 1, **options}
    if index:
        options["path_imgidx"] = os.path.join(FOLDER, "few.idx")
    path = os.path.join(FOLDER, "few.rec")
    return lambda mx: epochs(mx.image.ImageIter(batch, SHAPE, path_imgrec=path, **options))


def box_entries():
    """Flat labels with one to three boxes, behind a header of three numbers."""
    boxes = [[0, 0.1, 0.2, 0.6, 0.7], [1, 0.3, 0.3, 0.9, 0.8], [2, 0.05, 0.6, 0.2, 0.9]]
    entries = []
    for i, name in enumerate(LISTED):
        chosen = boxes[: 1 + i % 3] + ([[3, 0.5, 0.5, 0.5, 0.9]] if i == 2 else [])  # no area
        entries.append([3, 5, 9, *np.ravel(chosen).tolist(), name])
    return entries


def detected(**options):
    options = {"inter_method": 1, **options}
    return lambda mx: epochs(
        mx.image.ImageDetIter(3, SHAPE, imglist=box_entries(), path_root=FOLDER, **options), 2
    )


ITERATORS = {
    "iter list": listed(),
    "iter list shuffled": listed(shuffle=True, rand_crop=True, rand_mirror=True),
    "iter list discard": listed(last_batch_handle="discard", shuffle=True),
    "iter list labels": lambda mx: epochs(
        mx.image.ImageIter(
            2, SHAPE, 2, imglist=[[[i, i + 0.5], n] for i, n in enumerate(LISTED)], path_root=FOLDER
        ),
        1,
    ),
    "iter lst": lambda mx: epochs(
        mx.image.ImageIter(
            4, SHAPE, path_imglist=os.path.join(FOLDER, "few.lst"), path_root=FOLDER, dtype="int64"
        )
    ),
    "iter records": from_files(index=False),
    "iter records index": from_files(),
    "iter records shuffled": from_files(shuffle=True, resize=9, rand_crop=True, rand_resize=True),
    "iter records part": from_files(2, part_index=1, num_parts=2, shuffle=True),
    "iter records discard": from_files(last_batch_handle="discard"),
    "iter records relabelled": from_files(path_imglist=os.path.join(FOLDER, "few.lst")),
    "iter boxes": detected(),
    "iter boxes shuffled": detected(
        shuffle=True, rand_crop=0.7, rand_pad=0.5, rand_mirror=True, mean=True, std=True
    ),
    "iter boxes discard": detected(last_batch_handle="discard"),
}
ROLLING = {
    "iter list roll": listed(last_batch_handle="roll_over"),
    "iter records roll": from_files(last_batch_handle="roll_over", shuffle=True),
    "iter boxes roll": detected(last_batch_handle="roll_over"),
}
ITERATORS = {**ITERATORS, **ROLLING}


def applied(name, batch=False, **params):
    """An operator of `mx.nd.image` on floats and on bytes, where draws cannot differ."""

    def run(mx):
        found = []
        for dtype in ("float32", "uint8"):
            x = image(mx, dtype)
            x = x.transpose((2, 0, 1)) if name == "normalize" else x
            found.append(getattr(mx.nd.image, name)(mx.nd.stack(x, x) if batch else x, **params))
        return found

    return run


EQUAL = {"min_factor": 1.3, "max_factor": 1.3}
OPERATORS = {
    "op to_tensor": applied("to_tensor"),
    "op to_tensor batch": applied("to_tensor", batch=True),
    "op normalize": applied("normalize", mean=(1.0, 2.0, 3.0), std=(2.0, 3.0, 4.0)),
    "op normalize batch": applied("normalize", mean=(9.0,), std=(3.0,), batch=True),
    "op cut": applied("crop", x=3, y=2, width=9, height=11),
    "op cut batch": applied("crop", x=3, y=2, width=9, height=11, batch=True),
    "op flip_left_right": applied("flip_left_right"),
    "op flip_top_bottom": applied("flip_top_bottom"),
    "op random_brightness": applied("random_brightness", **EQUAL),
    "op random_contrast": applied("random_contrast", **EQUAL),
    "op adjust_lighting": applied("adjust_lighting", alpha=(0.1, 0.2, 0.3)),
}
CASES = {
    **OPERATORS,
    **DECODING,
    **BASE,
    **ROTATIONS,
    **AUGMENTERS,
    **DETECTION,
    **DUMPS,
    **ITERATORS,
}
#: Those that draw are recorded for each seed.
RANDOM = {n for n in CASES if "andom" in n or n in AUGMENTERS or n in DETECTION or n in ITERATORS}
SEEDS = (0, 1)


def host(value):
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def results(mx, name, seed):
    """The arrays of a case, after seeding."""
    import random

    random.seed(seed)
    np.random.seed(seed)
    made = CASES[name](mx)
    return [host(v) for v in (made if isinstance(made, list) else [made])]
