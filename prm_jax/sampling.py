"""Runs `python -m prm_jax.sampling`; the code is in generate/sampling.py."""

from prm_jax.generate.sampling import main

if __name__ == "__main__":
    main()
