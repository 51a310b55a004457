"""The command `python -m prm_jax.export`; what it does is in checkpoints/export.py."""

from prm_jax.checkpoints.export import main

if __name__ == "__main__":
    main()
