"""What several changes share: networks, gradients, layers, kernel times."""
