"""The mistakes that ports make, each other steps or formulas in the place of a model's own."""
