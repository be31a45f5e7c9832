"""The images that sandboxes start from: the folders they are described by, and building them with Docker."""
