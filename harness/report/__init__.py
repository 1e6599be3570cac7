"""The history in pictures: figures and one HTML page."""
