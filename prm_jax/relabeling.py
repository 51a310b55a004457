"""Runs `python -m prm_jax.relabeling`; the code is in generate/relabeling.py."""

from prm_jax.generate.relabeling import main

if __name__ == "__main__":
    main()
