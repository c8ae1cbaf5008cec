"""Parameters of MXNet's image record iterators whose values are recorded and compared."""

BASE = {"data_shape": (3, 20, 26), "batch_size": 4, "preprocess_threads": 1}
MEAN = {"mean_r": 123.0, "mean_g": 117.0, "mean_b": 104.0}
ITERATOR, BYTES, SIGNED = "ImageRecordIter", "ImageRecordUInt8Iter", "ImageRecordInt8Iter"
DETECTION = "ImageDetRecordIter"

#: name -> (iterator, parameters, largest difference allowed). Above 0 where OpenCV 5 computes more
#: exactly than the OpenCV in MXNet: affine changes (places in 1/32 pixel there), cubic, enlarging.
CASES = {
    "plain": (ITERATOR, {}, 0),
    "resized": (ITERATOR, {"resize": 25}, 0),
    "enlarged": (ITERATOR, {"data_shape": (3, 36, 50)}, 1),
    "mean": (ITERATOR, {**MEAN, "std_r": 58.0, "std_g": 57.0, "std_b": 56.0, "scale": 2.0}, 1e-4),
    "mirror": (ITERATOR, {"mirror": True}, 0),
    "grey": (ITERATOR, {"data_shape": (1, 20, 26), "mean_r": 9.0}, 0),
    "bytes": (BYTES, MEAN, 0),
    "signed": (SIGNED, {**MEAN, "scale": 0.6}, 0),
    "padded": (ITERATOR, {"pad": 8, "fill_value": 33, "data_shape": (3, 40, 50)}, 0),
    "rotated": (ITERATOR, {"rotate": 30}, 2),
    "larger": (ITERATOR, {"min_random_scale": 1.5, "max_random_scale": 1.5}, 1),
    "limited": (ITERATOR, {"max_img_size": 28, "data_shape": (3, 24, 28)}, 0),
    "square": (ITERATOR, {"min_crop_size": 18, "max_crop_size": 18}, 1),
    "nearest": (ITERATOR, {"resize": 25, "inter_method": 0}, 0),
    "cubic": (ITERATOR, {"resize": 25, "inter_method": 2}, 1),
    "area": (ITERATOR, {"resize": 25, "inter_method": 9}, 0),
    "boxes": (DETECTION, {}, 0),
    "boxes mirrored": (DETECTION, {"rand_mirror_prob": 1.0}, 1),
    "boxes shrunk": (DETECTION, {"resize_mode": "shrink", "data_shape": (3, 40, 50)}, 0),
}
