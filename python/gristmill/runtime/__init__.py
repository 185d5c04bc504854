"""What an installed wheel uses besides its kernels; imports no compiler."""
