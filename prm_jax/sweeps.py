"""The command `python -m prm_jax.sweeps`; what it does is in figures/sweeps.py."""

from prm_jax.figures.sweeps import main

if __name__ == "__main__":
    main()
