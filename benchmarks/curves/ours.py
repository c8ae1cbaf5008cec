"""Training runs on mixflow."""

from training import main

import mixflow as mx

if __name__ == "__main__":
    main(mx)
