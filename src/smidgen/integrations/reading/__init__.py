"""From files to rows: columns, tables, images, and which row goes where."""
