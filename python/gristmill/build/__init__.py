"""From kernel files to the sources and the archive that become one extension module."""
