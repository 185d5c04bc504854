"""Parts of tools/release."""
