"""Galleries: images, what is drawn over them, and a caption for each; on the page, and as .png files."""
