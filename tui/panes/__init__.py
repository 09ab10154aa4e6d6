"""What the screens are made of: painters (functions to rows of cells) and the widget that shows rows."""
