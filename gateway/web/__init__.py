"""The web server: health, metrics, and the routes that channels bring, all behind one door."""
