"""Runs `python -m prm_jax.labeling`; the code is in generate/labeling.py."""

from prm_jax.generate.labeling import main

if __name__ == "__main__":
    main()
