"""Image reading and augmentation (``mx.image``)."""
