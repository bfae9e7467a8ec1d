"""The parts of rows: settings of the input layer, parts of blocks and heads, and how each is read and bound."""
