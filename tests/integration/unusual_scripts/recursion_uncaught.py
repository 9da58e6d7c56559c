def deep(): deep()
deep()
