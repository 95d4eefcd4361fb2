"""Command lines of earlier systems, as configs of `synk train`: one module for each program."""
