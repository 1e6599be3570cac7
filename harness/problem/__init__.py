"""What is computed: shape, element types, inputs, and when a result is right."""
